package monitoring

import (
	"encoding/csv"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// A soakPlot is a quantity in testdata/soak.csv, with the title of its plot and the unit of a value.
type soakPlot struct {
	quantity, title string
	unit            float64
}

// soakPlots returns the plots in their order.
func soakPlots() []soakPlot {
	return []soakPlot{
		{"memory", "resident memory, MiB", 1 << 20},
		{"goroutines", "goroutines", 1},
		{"file descriptors", "file descriptors", 1},
		{"watches", "watches", 1},
		{"object size", "stored size of objects, KiB", 1 << 10},
	}
}

// TestSoakPicture draws the samples that `make soak` recorded. docs/scale.md contains the picture.
func TestSoakPicture(t *testing.T) {
	samples, end := readSoak(t)
	var plots []*plot.Plot
	for _, s := range soakPlots() {
		p := newPlot(s.title, "minutes", end)
		lines := samples[s.quantity]
		require.NotEmpty(t, lines, s.quantity)
		for n, of := range slices.Sorted(maps.Keys(lines)) {
			for at := range lines[of] {
				lines[of][at].Y /= s.unit
			}
			addLine(t, p, n, of, lines[of])
		}
		plots = append(plots, p)
	}
	requirePicture(t, "soak.png", plots)
}

// readSoak returns the recorded lines by quantity and by what it is of, and the last minute.
func readSoak(t *testing.T) (samples map[string]map[string]plotter.XYs, end float64) {
	t.Helper()
	file, err := os.Open("testdata/soak.csv")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	rows, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"seconds", "quantity", "of", "value"}, rows[0])
	samples = map[string]map[string]plotter.XYs{}
	for _, row := range rows[1:] {
		seconds, err := strconv.ParseFloat(row[0], 64)
		require.NoError(t, err)
		value, err := strconv.ParseFloat(row[3], 64)
		require.NoError(t, err)
		if samples[row[1]] == nil {
			samples[row[1]] = map[string]plotter.XYs{}
		}
		end = seconds / 60
		samples[row[1]][row[2]] = append(samples[row[1]][row[2]], plotter.XY{X: end, Y: value})
	}
	return samples, end
}
