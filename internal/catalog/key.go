package catalog

import (
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A KeyScope is what an API key may do.
type KeyScope string

const (
	KeyDecide KeyScope = "decide" // consume, hold, settle, reverse
	KeyRead   KeyScope = "read"   // limits, usage, configuration
	KeyAudit  KeyScope = "audit"  // entries, explanations, statements
	KeyAdmin  KeyScope = "admin"  // everything, and change the configuration
)

// KeyScopes returns every scope.
func KeyScopes() []KeyScope { return []KeyScope{KeyDecide, KeyRead, KeyAudit, KeyAdmin} }

// A Key is an API key without its secret, which only its holder has.
type Key struct {
	ID        string     `json:"id"`
	Env       string     `json:"env"`
	Name      string     `json:"name,omitempty"`
	Scopes    []KeyScope `json:"scopes"`           // not to be changed: copies share it
	Tenant    string     `json:"tenant,omitempty"` // "" means every tenant
	CreatedAt time.Time  `json:"created_at"`
	CreatedBy string     `json:"created_by"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	RevokedBy string     `json:"revoked_by,omitempty"`
}

// Allows reports whether the key has a scope. Admin has them all; no other scope
// implies another.
func (k Key) Allows(scope KeyScope) bool {
	return slices.Contains(k.Scopes, scope) || slices.Contains(k.Scopes, KeyAdmin)
}

// MayActFor reports whether the key may see and spend for a tenant.
func (k Key) MayActFor(tenant string) bool { return k.Tenant == "" || k.Tenant == tenant }

// A KeySpec is a key to be made.
type KeySpec struct {
	Env    string     `json:"env,omitempty"` // "live", "test"; live if absent
	Name   string     `json:"name,omitempty"`
	Scopes []KeyScope `json:"scopes"`
	Tenant string     `json:"tenant,omitempty"` // the one tenant it may act for; absent means every tenant
}

const (
	envDefault      = "live"
	keyNameBytesMax = 128
	envCharsMax     = 16
	tokenIDChars    = 12 // 62 bits: two keys never get the same one
	tokenTailChars  = 33 // the secret, base62: 196 bits
)

// Validate returns every fault of the spec.
func (s KeySpec) Validate() error {
	var faults faultList
	if s.Env != "" && (len(s.Env) > envCharsMax || !within(s.Env, base36)) {
		faults.add("env", "must match [a-z0-9]{1,16}")
	}
	if s.Name != "" {
		if rule := shortTextRule(s.Name, keyNameBytesMax); rule != "" {
			faults.add("name", "%s", rule)
		}
	}
	if len(s.Scopes) == 0 {
		faults.add("scopes", "must name at least one of decide, read, audit, admin")
	}
	for i, scope := range s.Scopes[:min(len(s.Scopes), faultsMax)] {
		oneOf(&faults, itemPath("scopes", i), scope, KeyScopes()...)
	}
	if s.Tenant != "" {
		if rule := IDRule(s.Tenant); rule != "" {
			faults.add("tenant", "%s", rule)
		}
		if slices.Contains(s.Scopes, KeyAdmin) {
			faults.add("tenant", "an admin key changes plans that all tenants share: it cannot be bound to one")
		}
	}
	return faults.err()
}

// A Token is what a key's holder sends: qk_<env>_<id>_<secret>.
type Token struct {
	Env    string
	ID     string // public: it names the key in lists and logs
	Secret string // known to the holder alone
}

// ParseToken reads a token. Every request comes with one, so it is read by hand.
func ParseToken(text string) (Token, bool) {
	rest, prefixed := strings.CutPrefix(text, "qk_")
	env, rest, cut := strings.Cut(rest, "_")
	id, rest, cutAgain := strings.Cut(rest, "_")
	if !prefixed || !cut || !cutAgain || len(env) < 1 || len(env) > envCharsMax || len(id) != tokenIDChars ||
		len(rest) != tokenTailChars || !within(env, base36) || !within(id, base36) || !within(rest, base62) {
		return Token{}, false
	}
	return Token{Env: env, ID: id, Secret: rest}, true
}

// within reports whether text is made of letters of an alphabet alone.
func within(text, alphabet string) bool {
	for i := range len(text) {
		if strings.IndexByte(alphabet, text[i]) < 0 {
			return false
		}
	}
	return true
}

// NewToken makes a token with an id and a secret from random.
func NewToken(random io.Reader, env string) (Token, error) {
	id, err := randomText(random, base36, tokenIDChars)
	if err != nil {
		return Token{}, fmt.Errorf("make a key's id: %w", err)
	}
	secret, err := randomText(random, base62, tokenTailChars)
	if err != nil {
		return Token{}, fmt.Errorf("make a key's secret: %w", err)
	}
	return Token{Env: env, ID: id, Secret: secret}, nil
}

// Reveal returns the whole token, secret included.
func (t Token) Reveal() string { return "qk_" + t.Env + "_" + t.ID + "_" + t.Secret }

// String leaves the secret out, so that a token in a log gives nothing away.
func (t Token) String() string { return "qk_" + t.Env + "_" + t.ID + "_…" }

// Hash is what is kept of the secret. It needs no salt and no slow hash: the secret
// is 196 random bits, which nobody can guess their way through.
func (t Token) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(t.Secret)) }

const (
	base36 = "0123456789abcdefghijklmnopqrstuvwxyz"
	base62 = base36 + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// randomText returns n characters of alphabet, each equally likely: a byte beyond the
// last whole multiple of the alphabet is drawn again.
func randomText(random io.Reader, alphabet string, n int) (string, error) {
	const drawsMax = 1_000 // a fair source needs about 40
	fair := 256 / len(alphabet) * len(alphabet)
	text := make([]byte, 0, n)
	var draw [1]byte
	for range drawsMax {
		if _, err := io.ReadFull(random, draw[:]); err != nil {
			return "", err
		}
		if int(draw[0]) < fair {
			text = append(text, alphabet[int(draw[0])%len(alphabet)])
		}
		if len(text) == n {
			return string(text), nil
		}
	}
	return "", fmt.Errorf("no fair characters in %d random bytes", drawsMax)
}
