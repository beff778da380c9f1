// Package hostiletext adds text that an attacker chooses to the objects of tests.
package hostiletext

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// Fuzz calls check with texts that a terminal obeys, that reorder or hide others, or that are not
// UTF-8, and with those that the fuzzer finds.
func Fuzz(f *testing.F, check func(t *testing.T, text string)) {
	f.Helper()
	f.Add("\x1b]52;c;cm0gLXJmIH4=\x07\x1b[8m")
	f.Add("\u202e\u2066\u200b\u009b8m")
	f.Add("\xff\xc3\x00\r\n\t\u2028")
	f.Fuzz(check)
}

// RequirePrintable requires that people can be shown these texts of a case of a test.
func RequirePrintable(t *testing.T, name string, shown ...string) {
	t.Helper()
	for _, text := range shown {
		require.Equal(t, printable.Text(text), text, name)
	}
}

// Spread appends a text to every text of an object, which is a pointer: also within annotations in
// JSON. The same name stays the same everywhere. It leaves labels, taints and types of conditions
// as they are, because the API server checks their characters, and values of other types than
// string, which are IDs and enumerations.
func Spread(object any, text string) { spread(reflect.ValueOf(object).Elem(), text) }

func spread(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() && v.CanSet() && v.Len() > 0 {
			v.SetString(spreadString(v.String(), text))
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			spread(v.Elem(), text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			spread(v.Index(i), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.IsExported() && !slices.Contains([]string{"Labels", "Taints", "Type"}, field.Name) {
				spread(v.Field(i), text)
			}
		}
	case reflect.Map:
		spreadMap(v, text)
	default: // Numbers have no text.
	}
}

// spreadMap changes the keys of maps by name. Those of annotations are known.
func spreadMap(v reflect.Value, text string) {
	keys := v.MapKeys()
	for _, key := range keys {
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(v.MapIndex(key))
		spread(value, text)
		if key.Type() == reflect.TypeFor[string]() && value.Kind() != reflect.String {
			v.SetMapIndex(key, reflect.Value{})
			key = reflect.ValueOf(key.String() + text)
		}
		v.SetMapIndex(key, value)
	}
}

// spreadString appends a text to a string, or to the strings in its JSON.
func spreadString(s, text string) string {
	var value any
	if err := json.Unmarshal([]byte(s), &value); err != nil {
		return s + text
	}
	changed, err := json.Marshal(spreadJSON(value, text))
	if err != nil {
		return s + text
	}
	return string(changed)
}

func spreadJSON(value any, text string) any {
	switch value := value.(type) {
	case string:
		return value + text
	case []any:
		for i := range value {
			value[i] = spreadJSON(value[i], text)
		}
	case map[string]any:
		for key := range maps.Clone(value) {
			value[key] = spreadJSON(value[key], text)
		}
	}
	return value
}
