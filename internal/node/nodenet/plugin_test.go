package nodenet

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestProgramProblemOfCutProgram cuts programs of two linkers at many places.
func TestProgramProblemOfCutProgram(t *testing.T) {
	own, err := os.Executable()
	require.NoError(t, err)
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	for name, at := range map[string]string{"Go": own, "system": shell} {
		t.Run(name, func(t *testing.T) {
			program, err := os.ReadFile(at)
			require.NoError(t, err)
			problem, err := programProblem(bytes.NewReader(program), int64(len(program)))
			require.NoError(t, err)
			require.Empty(t, problem)
			for part := range 200 {
				cut := program[:(len(program)-1)*part/199]
				problem, err := programProblem(bytes.NewReader(cut), int64(len(cut)))
				require.NoError(t, err)
				require.NotEmpty(t, problem, "%d of %d bytes", len(cut), len(program))
			}
		})
	}
}

// TestProgramProblemByTable has programs whose end is in one table alone: packers remove the
// sections, and linkers put the section table before the sections.
func TestProgramProblemByTable(t *testing.T) {
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}
	packed, early := header, header
	packed.Phoff, packed.Phentsize, packed.Phnum = 64, 56, 1
	early.Shoff, early.Shentsize, early.Shnum, early.Shstrndx = 64, 64, 4, 1
	for name, parts := range map[string][]any{
		"segments": {packed, elf.Prog64{Type: uint32(elf.PT_LOAD), Off: 64, Filesz: 436}},
		"sections": {
			early,
			elf.Section64{},
			elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: 320, Size: 1},
			elf.Section64{Type: uint32(elf.SHT_PROGBITS), Off: 400, Size: 100},
			elf.Section64{Type: uint32(elf.SHT_NOBITS), Off: 500, Size: 4096},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var program bytes.Buffer
			for _, part := range parts {
				require.NoError(t, binary.Write(&program, binary.LittleEndian, part))
			}
			program.Write(make([]byte, 500-program.Len()))
			problem, err := programProblem(bytes.NewReader(program.Bytes()), 500)
			require.NoError(t, err)
			require.Empty(t, problem)
			problem, err = programProblem(bytes.NewReader(program.Bytes()[:499]), 499)
			require.NoError(t, err)
			require.Equal(t, "is an incomplete ELF program: it has 499 of 500 bytes", problem)
		})
	}
}

func TestProgramProblemOfUnreadableProgram(t *testing.T) {
	own, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(own)
	require.NoError(t, err)
	for _, good := range []int{0, 4} { // the number of readable bytes
		_, err := programProblem(brokenDisk{bytes.NewReader(program), int64(good)}, int64(len(program)))
		require.ErrorIs(t, err, syscall.EIO)
	}
}

type brokenDisk struct {
	io.ReaderAt
	good int64
}

func (b brokenDisk) ReadAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > b.good {
		return 0, syscall.EIO
	}
	return b.ReaderAt.ReadAt(p, at)
}

func FuzzSubnetFile(f *testing.F) {
	const whole = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	f.Add(whole, 10)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		var file readiness.SubnetFile
		if parseSubnetFile([]byte(text), &file) == nil {
			require.NotEmpty(t, file.Subnet+file.IPv6Subnet)
			require.NotEmpty(t, file.MTU)
		}
		if cut >= 0 && cut < len(whole)-1 { // the newline at the end may be missing
			require.Error(t, parseSubnetFile([]byte(whole[:cut]), &file), "half-written at %d", cut)
		}
	})
}
