package catalog

import "regexp"

// NameRule is the rule of meter, plan and limit names, as an error says it.
const NameRule = "must match [a-z0-9][a-z0-9._-]{0,63}"

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ValidName reports whether name may name a meter, a plan, a limit or a pool.
func ValidName(name string) bool { return namePattern.MatchString(name) }
