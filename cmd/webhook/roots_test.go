package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// asCounter makes the test's own program one that counts the authorities that it knows.
const asCounter = "as-counter-of-authorities"

func countAuthorities() {
	roots, err := x509.SystemCertPool()
	if err != nil {
		panic(err)
	}
	fmt.Fprint(os.Stdout, len(roots.Subjects())) //nolint:staticcheck // those of the fallback are all listed, unlike a platform's
}

// A process that finds no certificates of the system, as in the image, must still know whom the SPC API is signed by.
func TestAnImageWithoutFilesKnowsThePublicAuthorities(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), program, asCounter)
	child.Env = []string{"SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent"}
	out, err := child.Output()
	require.NoError(t, err)
	var count int
	_, err = fmt.Sscan(string(out), &count)
	require.NoError(t, err)
	require.Greater(t, count, 50)
}
