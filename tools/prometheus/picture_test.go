package monitoring

import (
	"bytes"
	"encoding/json"
	"flag"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// images is the directory of the pictures in the documents.
const images = "../../docs/images"

// columns is the number of plots side by side in a picture, and dashboardRows how many rows of the
// dashboard are drawn.
const columns, dashboardRows = 2, 3

var update = flag.Bool("update", false, "draw the pictures again")

// TestPicture draws the first panels of the dashboard that show series. docs/metrics.md contains the
// picture.
func TestPicture(t *testing.T) {
	recorded := newRecording(t)
	var d struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(read(t, filepath.Join(component, "dashboard.json")), &d))
	var plots []*plot.Plot
	for _, panel := range d.Panels {
		if panel.Type != "timeseries" || len(plots) == columns*dashboardRows {
			continue
		}
		p := newPlot(panel.Title, "seconds", recorded.end.Sub(recorded.start).Seconds())
		drawn := 0
		for _, target := range panel.Targets {
			query := strings.ReplaceAll(target.Expr, "$__rate_interval", rateInterval)
			for _, series := range recorded.queryRange(t, query) {
				if drawn >= 7 || isZero(series) {
					continue
				}
				addLine(t, p, drawn, legend(series, target.LegendFormat), points(series, recorded.start.UnixMilli()))
				drawn++
			}
		}
		plots = append(plots, p)
	}
	require.Len(t, plots, columns*dashboardRows)
	requirePicture(t, "dashboard.png", plots)
}

// newPlot returns a plot whose X axis ends at this value.
func newPlot(title, unit string, end float64) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Min = title, unit, 0
	p.Legend.Top, p.Legend.Left, p.BackgroundColor = true, true, color.White
	p.Title.Padding, p.Legend.Padding = vg.Points(4), vg.Points(2)
	p.X.Min, p.X.Max = 0, end
	return p
}

// addLine adds a line to the plot, which has n lines.
func addLine(t *testing.T, p *plot.Plot, n int, name string, values plotter.XYs) {
	t.Helper()
	line, err := plotter.NewLine(values)
	require.NoError(t, err)
	line.Color, line.Dashes, line.Width = plotutil.Color(n), plotutil.Dashes(n), vg.Points(1.5)
	p.Add(line)
	p.Legend.Add(name, line)
}

// requirePicture draws the plots, and compares the result with the picture in the documents. With
// -update it writes the picture.
func requirePicture(t *testing.T, name string, plots []*plot.Plot) {
	t.Helper()
	for _, p := range plots {
		p.Y.Max = math.Max(1, p.Y.Max) * 1.6 // The legend is above the lines.
	}
	drawn, picture := render(t, plots), filepath.Join(images, name)
	if *update {
		require.NoError(t, os.MkdirAll(images, 0o755))
		require.NoError(t, os.WriteFile(picture, drawn, 0o600))
	}
	require.Less(t, difference(t, drawn, read(t, picture)), 0.01, "the picture is stale: make monitoring UPDATE=1")
}

// difference returns the share of pixels that differ. Another processor may round differently.
func difference(t *testing.T, a, b []byte) float64 {
	t.Helper()
	first, err := png.Decode(bytes.NewReader(a))
	require.NoError(t, err)
	second, err := png.Decode(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, first.Bounds(), second.Bounds())
	size, different := first.Bounds().Size(), 0
	for x := range size.X {
		for y := range size.Y {
			if first.At(x, y) != second.At(x, y) {
				different++
			}
		}
	}
	return float64(different) / float64(size.X*size.Y)
}

func isZero(series promql.Series) bool {
	for _, point := range series.Floats {
		if point.F != 0 {
			return false
		}
	}
	return true
}

// points returns the points of a series, by seconds since the start.
func points(series promql.Series, start int64) plotter.XYs {
	found := make(plotter.XYs, 0, len(series.Floats))
	for _, point := range series.Floats {
		if !math.IsNaN(point.F) {
			found = append(found, plotter.XY{X: float64(point.T-start) / 1000, Y: point.F})
		}
	}
	return found
}

// legend returns the name of a series, as Grafana makes it.
func legend(series promql.Series, format string) string {
	return regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(format, func(field string) string {
		return series.Metric.Get(strings.Trim(field, "{}"))
	})
}

// render returns the plots as a PNG.
func render(t *testing.T, plots []*plot.Plot) []byte {
	t.Helper()
	rows := slices.Collect(slices.Chunk(plots, columns))
	last := &rows[len(rows)-1]
	*last = append(slices.Clone(*last), make([]*plot.Plot, columns-len(*last))...) // nil is an empty tile
	image := vgimg.New(vg.Points(1000), vg.Length(len(rows))*vg.Points(300))
	tiles := draw.Tiles{
		Rows: len(rows), Cols: columns, PadX: vg.Points(16), PadY: vg.Points(16),
		PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(8),
	}
	canvases := plot.Align(rows, tiles, draw.New(image))
	for row := range rows {
		for column, p := range rows[row] {
			if p != nil {
				p.Draw(canvases[row][column])
			}
		}
	}
	var out bytes.Buffer
	_, err := vgimg.PngCanvas{Canvas: image}.WriteTo(&out)
	require.NoError(t, err)
	return out.Bytes()
}
