package printable_test

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

func ExampleQuote() {
	fmt.Println(printable.Quote("unit etcd.service\n\x1b[8m hidden"))
	// Output: unit etcd.service [8m hidden
}
