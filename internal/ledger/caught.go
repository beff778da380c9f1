package ledger

import (
	"fmt"
	"runtime/debug"
)

// caught runs a part that has a goroutine of its own. A panic there costs that part and not the process, with all the other
// answers that it is about to give: nobody further up can recover from it.
func caught(part func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("an error of holdfast's own, please report it: %v\n%s", p, debug.Stack())
		}
	}()
	return part()
}
