// Command guard is the program of guard pods. It does nothing until SIGTERM or SIGINT: a guard pod
// only has to exist.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
