package catalog

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// What is read by hand on each request accepts just what its rule says.
func TestNamesAndTokensAreWhatTheirRulesSay(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	token := regexp.MustCompile(`^qk_([a-z0-9]{1,16})_([a-z0-9]{12})_([0-9A-Za-z]{33})$`)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.StringMatching(`[a-z0-9._\-]{0,66}`), rapid.StringMatching(`[a-zA-Z_\n ]{0,4}`), rapid.String(),
		).Draw(t, "name")
		if got, want := ValidName(text), name.MatchString(text); got != want {
			t.Fatalf("ValidName(%q) = %v, want %v", text, got, want)
		}
		text = rapid.OneOf(
			rapid.StringMatching(`qk_[a-z0-9]{1,16}_[a-z0-9]{12}_[0-9A-Za-z]{33}`),
			rapid.StringMatching(`qk_[a-z0-9_]{0,18}_[a-zA-Z0-9]{11,13}_[0-9A-Za-z_]{32,34}`), rapid.String(),
		).Draw(t, "token")
		want := Token{}
		parts := token.FindStringSubmatch(text)
		if parts != nil {
			want = Token{Env: parts[1], ID: parts[2], Secret: parts[3]}
		}
		if got, ok := ParseToken(text); got != want || ok != (parts != nil) {
			t.Fatalf("ParseToken(%q) = %+v %v, want %+v", text, got, ok, want)
		}
	})
}
