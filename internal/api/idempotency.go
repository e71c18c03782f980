package api

import (
	"net/http"
	"strings"
)

const idempotencyKeyHeader = "Idempotency-Key"

// idempotencyKey returns the request's key, "" if it has none. The key is written
// bare or as a structured field's string: `abc` and `"abc"` are the same key.
// Its length and text are checked by quota.Request.Validate.
func idempotencyKey(header http.Header) (string, error) {
	values := header[idempotencyKeyHeader]
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", invalid(idempotencyKeyHeader, "must be given only once")
	}
	key, rule := parseIdempotencyKey(values[0])
	if rule != "" {
		return "", invalid(idempotencyKeyHeader, rule)
	}
	return key, nil
}

// parseIdempotencyKey returns the key that a header value holds, or the rule it breaks.
// An empty one is refused: its sender believes to be protected and is not.
func parseIdempotencyKey(value string) (key, rule string) {
	value = strings.Trim(value, " \t")
	if strings.HasPrefix(value, `"`) {
		if value, rule = unquote(value); rule != "" {
			return "", rule
		}
	}
	if value == "" {
		return "", "must not be empty"
	}
	return value, ""
}

// unquote reads a structured field's string (RFC 9651, section 3.3.3): printable
// ASCII, with \" and \\ the only escapes.
func unquote(value string) (text, rule string) {
	var b strings.Builder
	for i := 1; i < len(value); i++ {
		switch ch := value[i]; {
		case ch == '"':
			if i != len(value)-1 {
				return "", "must end at its closing quote"
			}
			return b.String(), ""
		case ch == '\\':
			i++
			if i == len(value) || (value[i] != '"' && value[i] != '\\') {
				return "", `may escape only \" and \\ when quoted`
			}
			b.WriteByte(value[i])
		case ch < ' ' || ch > '~':
			return "", "must be printable ASCII when quoted"
		default:
			b.WriteByte(ch)
		}
	}
	return "", "must end with a quote when it begins with one"
}
