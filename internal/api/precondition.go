package api

import (
	"encoding/hex"
	"errors"
	"net/http"
	"strings"

	"github.com/quotad/quotad/internal/catalog"
)

// tagsMax bounds the tags that one header field may list.
const tagsMax = 100

const (
	ifMatchHeader     = "If-Match"
	ifNoneMatchHeader = "If-None-Match"
	entityTagsRule    = `must be * or a list of quoted entity tags, as ETag gives them`
)

// etag is how a header field writes the tag of an object.
func etag(t catalog.Tag) string { return `"` + t.String() + `"` }

// precondition reads If-Match and If-None-Match (RFC 9110, section 13.1). If-Match
// compares strongly, so a weak tag never holds there; If-None-Match compares weakly.
func (c *call) precondition() (when catalog.Precondition, err error) {
	header := c.r.Header
	if when.Match, err = tagSet(header, ifMatchHeader, false); err != nil {
		return when, err
	}
	when.NoneMatch, err = tagSet(header, ifNoneMatchHeader, true)
	return when, err
}

// tagSet reads a list of entity tags; nil if the field is absent. Tags that quotad
// never made are left out, since nothing has them.
func tagSet(header http.Header, field string, weak bool) (*catalog.TagSet, error) {
	lines := header.Values(field)
	if len(lines) == 0 {
		return nil, nil
	}
	set := &catalog.TagSet{}
	rest := strings.Trim(strings.Join(lines, ","), " \t")
	if rest == "*" {
		set.Any = true
		return set, nil
	}
	tags := 0
	for {
		rest = strings.TrimLeft(rest, " \t,") // a list may have empty elements
		if rest == "" {
			break
		}
		opaque, isWeak, after, ok := cutEntityTag(rest)
		if tags++; !ok || tags > tagsMax {
			return nil, invalid(field, entityTagsRule)
		}
		rest = after
		var tag catalog.Tag
		if n, err := hex.Decode(tag[:], []byte(opaque[:min(len(opaque), 2*len(tag))])); err != nil ||
			n != len(tag) || tag.String() != opaque || isWeak && !weak {
			continue
		}
		set.Tags = append(set.Tags, tag)
	}
	if tags == 0 {
		return nil, invalid(field, entityTagsRule)
	}
	return set, nil
}

// cutEntityTag cuts the first entity tag off a list, up to its comma.
func cutEntityTag(text string) (opaque string, weak bool, rest string, ok bool) {
	text, weak = strings.CutPrefix(text, "W/")
	text, ok = strings.CutPrefix(text, `"`)
	if !ok {
		return "", weak, "", false
	}
	opaque, rest, ok = strings.Cut(text, `"`)
	rest = strings.TrimLeft(rest, " \t")
	ok = ok && (rest == "" || rest[0] == ',') &&
		!strings.ContainsFunc(opaque, func(r rune) bool { return r <= ' ' || r == 0x7f })
	return opaque, weak, rest, ok
}

// tagged answers a GET with an object, or with 304 if the caller has it as it is.
// Unlike other answers a copy may be kept, to be asked about before each use.
func (c *call) tagged(tag catalog.Tag, value any) error {
	when, err := c.precondition()
	if err != nil {
		return err
	}
	if err := (catalog.Precondition{Match: when.Match}).Check(tag); err != nil {
		return err
	}
	c.w.Header()["ETag"] = []string{etag(tag)}
	if (catalog.Precondition{NoneMatch: when.NoneMatch}).Check(tag) != nil {
		c.w.Header()["Cache-Control"] = headerNoCache
		c.status = http.StatusNotModified
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return c.encode(http.StatusOK, headerNoCache, value)
}

// preconditionProblem makes a problem of a precondition that does not hold; nil if err
// is something else.
func preconditionProblem(err error) *problem {
	var failed *catalog.PreconditionError
	if !errors.As(err, &failed) {
		return nil
	}
	if failed.Tag == (catalog.Tag{}) {
		return &problem{code: codePrecondition, detail: "There is no such object. Nothing was changed."}
	}
	return &problem{
		code: codePrecondition, etag: etag(failed.Tag),
		detail: "The object is not in the state that was asked for: ETag has its present one. Nothing was changed.",
	}
}
