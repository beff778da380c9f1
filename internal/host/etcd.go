package host

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// Look is one look at a host's etcd.
type Look struct {
	Found []protect.Sighting `json:"found"`
	// Unknown are the places that could not be looked at, each with the reason. While there is one, the absence of etcd is
	// not proven.
	Unknown []string `json:"unknown,omitempty"`
	// Notes say in words what was seen besides and is no etcd server, and what is lost without being missed.
	Notes []string `json:"notes,omitempty"`
}

// Etcd says which etcd servers the host shows, running or stopped, and what could not be looked at. While something is
// unknown, the absence of etcd is not proven.
func (h *Host) Etcd(ctx context.Context) (found []protect.Sighting, unknown []string) {
	look := h.Look(ctx)
	return look.Found, look.Unknown
}

// Look is Etcd with notes for people.
func (h *Host) Look(ctx context.Context) Look {
	s := scan{host: h}
	s.readUnits(ctx)
	s.readProcesses()
	s.readStopped()
	s.readManifests()
	s.readDataDirs()
	s.noteWorkloads()
	h.traces.learn(&s)
	slices.Sort(s.unknown)
	look := Look{Unknown: slices.Compact(s.unknown), Notes: s.notes}
	for _, found := range s.found {
		look.Found = append(look.Found, found.Sighting)
	}
	return look
}

// scan is a look in progress. One server may show as a unit, a process, a manifest and a data directory: the steps run in
// this order, and a later one adds to what an earlier one found of the same server.
type scan struct {
	host     *Host
	services []service
	found    []server
	// workloads are servers in ordinary pods, which are no part of the host.
	workloads []workload
	unknown   []string
	notes     []string
	// settingsFiles are those of programs around etcd.
	settingsFiles []string
}

// server is a sighting with what tells it from others: the data directory, which etcd locks, so that no two servers
// share one.
type server struct {
	protect.Sighting
	dir fs.FileInfo
	// named is the data directory by the server's own name for it.
	named string
}

func (s *scan) readUnits(ctx context.Context) {
	files, unread := s.host.unitFiles(serverUnits())
	units, note, err := s.host.loadedUnits(ctx)
	if err != nil {
		unread = append(unread, fmt.Sprintf("systemd over D-Bus: %v", err))
	}
	if note != "" {
		s.notes = append(s.notes, note+"; processes, unit files and data directories were looked at instead")
	}
	for name, unit := range units {
		if len(unit.files) > 0 && !unit.masked { // what a mask hides on the disk still tells where a member has its data
			files[name] = unit.files
		}
	}
	s.unknown = append(s.unknown, unread...)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		found := s.host.service(name, files[name])
		found.mainPID = units[name].mainPID
		s.services = append(s.services, found)
	}
	s.addInstances()
}
