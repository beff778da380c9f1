// Package testlog has a buffer that a test reads while other goroutines write to it.
package testlog

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Buffer collects what other goroutines log or print. The zero value is ready for use.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer. It returns no error.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the collected text.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Reset empties the buffer.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Reset()
}

// RequireText waits until the buffer contains a text. The test fails if it does not come in time.
func (b *Buffer) RequireText(t *testing.T, text string, within time.Duration) {
	t.Helper()
	hasText := func() bool { return strings.Contains(b.String(), text) }
	require.Eventually(t, hasText, within, 10*time.Millisecond, text)
}
