package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// measurement is what measure counts over all Go files of a tree that are not generated.
type measurement struct {
	functions      []int // lines of each function from brace to brace, tests left out
	commentColumns []int // the column at which each comment line ends
	names          int   // functions, tests left out
	oneWordNames   int
	docsSay        int
	vagueWords     int
	types          map[string]map[string]bool // the packages that declare each unexported type name
	files          map[bool]int               // by whether the file is a test
	lines, tokens  map[bool]int
	shortFiles     int
}

var (
	saysWhether = regexp.MustCompile(`^\S+ says (that|whether)\b`)
	vagueWord   = regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|anew)\b`)
	word        = regexp.MustCompile(`[A-Z]+[a-z0-9_]*|^[a-z0-9_]+`)
	generated   = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
)

// minLines is the size below which a file should be merged with another one of its subject.
const minLines = 40

// measure reads all Go files below dir, except those of tools, hidden directories and
// generated files.
func measure(dir string) (*measurement, error) {
	m := &measurement{
		types: map[string]map[string]bool{}, files: map[bool]int{}, lines: map[bool]int{}, tokens: map[bool]int{},
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		switch {
		case d.IsDir() && path != dir && (name == "tools" || name == "testdata" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if generated.Match(source) {
			return nil
		}
		return m.add(path, source)
	})
	return m, err
}

// add counts one file.
func (m *measurement) add(path string, source []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	isTest := strings.HasSuffix(path, "_test.go")
	lines := bytes.Count(source, []byte("\n"))
	m.files[isTest]++
	m.lines[isTest] += lines
	m.tokens[isTest] += countTokens(files, source)
	m.vagueWords += len(vagueWord.FindAll(source, -1))
	if base := filepath.Base(path); !isTest && lines < minLines && base != "doc.go" && base != "version.go" {
		m.shortFiles++
	}
	m.addComments(files, file, source)
	m.addTypes(filepath.Dir(path)+" "+file.Name.Name, file)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if !isTest {
				m.addFunction(files, n)
			}
			m.addDoc(n.Doc)
		case *ast.GenDecl:
			m.addDoc(n.Doc)
		case *ast.Field:
			m.addDoc(n.Doc)
		}
		return true
	})
	return nil
}

// addTypes records the unexported types that a file declares at package level.
func (m *measurement) addTypes(pkg string, file *ast.File) {
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			if t, ok := spec.(*ast.TypeSpec); ok && !t.Name.IsExported() {
				if m.types[t.Name.Name] == nil {
					m.types[t.Name.Name] = map[string]bool{}
				}
				m.types[t.Name.Name][pkg] = true
			}
		}
	}
}

func (m *measurement) addDoc(doc *ast.CommentGroup) {
	if saysWhether.MatchString(doc.Text()) {
		m.docsSay++
	}
}

func (m *measurement) addFunction(files *token.FileSet, f *ast.FuncDecl) {
	if f.Body != nil {
		m.functions = append(m.functions, files.Position(f.Body.End()).Line-files.Position(f.Body.Pos()).Line+1)
	}
	m.names++
	if len(word.FindAllString(f.Name.Name, -1)) == 1 {
		m.oneWordNames++
	}
}

// addComments records where each comment line ends, directives left out. A tab is one
// column wide.
func (m *measurement) addComments(files *token.FileSet, file *ast.File, source []byte) {
	lines := bytes.Split(source, []byte("\n"))
	for _, group := range file.Comments {
		for _, c := range group.List {
			if !strings.HasPrefix(c.Text, "// ") && !strings.HasPrefix(c.Text, "/*") {
				continue
			}
			for line := files.Position(c.Pos()).Line; line <= files.Position(c.End()).Line; line++ {
				m.commentColumns = append(m.commentColumns, utf8.RuneCount(lines[line-1]))
			}
		}
	}
}

// countTokens is a measure of size that does not grow when lines are wrapped.
func countTokens(files *token.FileSet, source []byte) int {
	var s scanner.Scanner
	s.Init(files.AddFile("", files.Base(), len(source)), source, nil, 0)
	for n := 0; ; {
		_, t, text := s.Scan()
		switch {
		case t == token.EOF:
			return n
		case t == token.SEMICOLON && text == "\n": // inserted at the end of a line
		default:
			n++
		}
	}
}
