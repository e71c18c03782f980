package api

import (
	"net/http"
	"testing"
)

// A key that one client quotes and another does not is the same key; anything that
// only looks like one is refused, since its sender believes to be protected.
func TestIdempotencyKeyBareOrQuoted(t *testing.T) {
	tests := []struct {
		value, key, rule string
	}{
		{`abc`, `abc`, ""},
		{`"abc"`, `abc`, ""},
		{` "abc"	`, `abc`, ""},
		{`"a b"`, `a b`, ""},
		{`"a\"b\\c"`, `a"b\c`, ""},
		{`a"b`, `a"b`, ""},
		{`8e03978e-40d5-43e8-bc93-6894a57f9324`, `8e03978e-40d5-43e8-bc93-6894a57f9324`, ""},
		{``, "", "must not be empty"},
		{`""`, "", "must not be empty"},
		{`"`, "", "must end with a quote when it begins with one"},
		{`"abc`, "", "must end with a quote when it begins with one"},
		{`"abc\"`, "", "must end with a quote when it begins with one"},
		{`"a\bc"`, "", `may escape only \" and \\ when quoted`},
		{`"abc\`, "", `may escape only \" and \\ when quoted`},
		{`"abc";p=1`, "", "must end at its closing quote"},
		{`"abc", "def"`, "", "must end at its closing quote"},
		{"\"a\x7fb\"", "", "must be printable ASCII when quoted"},
		{"\"é\"", "", "must be printable ASCII when quoted"},
	}
	for _, tt := range tests {
		key, rule := parseIdempotencyKey(tt.value)
		if key != tt.key || rule != tt.rule {
			t.Errorf("parseIdempotencyKey(%s) = %q, %q; want %q, %q", tt.value, key, rule, tt.key, tt.rule)
		}
	}
}

func TestIdempotencyKeyOnce(t *testing.T) {
	if _, err := idempotencyKey(http.Header{idempotencyKeyHeader: {"a", "b"}}); err == nil {
		t.Error("idempotencyKey takes two fields, want a problem")
	}
	if key, err := idempotencyKey(http.Header{}); key != "" || err != nil {
		t.Errorf("idempotencyKey of no field = %q, %v; want none", key, err)
	}
}
