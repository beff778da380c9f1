package evidence

import (
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// maxAccessLength limits each value of an Access, as the schema does.
const maxAccessLength = 256

// The patterns of the schema. A value that matches them means the same to a shell as it says.
var (
	accessEndpoint = regexp.MustCompile(`^https?://[0-9A-Za-z.:\[\]-]+$`)
	accessPath     = regexp.MustCompile(`^(/[0-9A-Za-z._@+-]+)+$`)
)

// distributions returns the known distributions.
func distributions() []v1alpha1.Distribution {
	return []v1alpha1.Distribution{
		v1alpha1.DistributionK0s, v1alpha1.DistributionK3s, v1alpha1.DistributionKubeadm,
		v1alpha1.DistributionKubespray, v1alpha1.DistributionRKE2,
	}
}

// SafeAccess returns the access without the values that must not be part of a command, nil if
// nothing remains. The writer of an access uses it so that the API server accepts the observation,
// and its reader so that no observer can put words of its own into a command. Without one of the
// files, or without the endpoint, the command would not work, so only the distribution remains.
func SafeAccess(a *v1alpha1.Access) *v1alpha1.Access {
	if a == nil {
		return nil
	}
	safe := *a
	if !slices.Contains(distributions(), safe.Distribution) {
		safe.Distribution = ""
	}
	isSafe := len(safe.Endpoint) <= maxAccessLength && accessEndpoint.MatchString(safe.Endpoint)
	for _, file := range []string{safe.CACert, safe.Cert, safe.Key} {
		isSafe = isSafe && (file == "" || isSafePath(file))
	}
	if !isSafe {
		safe = v1alpha1.Access{Distribution: safe.Distribution}
	}
	if safe == (v1alpha1.Access{}) {
		return nil
	}
	return &safe
}

// isSafePath reports whether a path of the host may be part of a command. A path below /proc
// belongs to a process that may not run any more.
func isSafePath(file string) bool {
	return len(file) <= maxAccessLength && accessPath.MatchString(file) &&
		!strings.Contains(file+"/", "/../") && !strings.HasPrefix(file, "/proc/")
}
