package api

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
)

// Bounds of a body. A decision is small; a plan may have hundreds of limits.
const (
	consumeBytesMax = 64 << 10
	configBytesMax  = 1 << 20
	batchBytesMax   = 1 << 20
)

// readBody reads the JSON body of the request into c.in.text.
func (c *call) readBody(bytesMax int64) error {
	if err := checkMediaType(c.r.Header); err != nil {
		return err
	}
	if c.r.ContentLength > bytesMax {
		return c.tooLarge(bytesMax)
	}
	c.in.text.Reset()
	c.limited = io.LimitedReader{R: c.r.Body, N: bytesMax + 1}
	n, err := c.in.text.ReadFrom(&c.limited)
	switch {
	case n > bytesMax:
		return c.tooLarge(bytesMax)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.w.Header().Set("Connection", "close")
		return &problem{code: codeRequestTimeout, cause: err}
	case err != nil:
		if ctxErr := c.r.Context().Err(); ctxErr != nil {
			return ctxErr
		}
		return &problem{code: codeInvalidRequest, detail: "The body ended before its length.", cause: err}
	}
	return nil
}

// tooLarge refuses a body; the connection ends with it, as its rest is not read.
func (c *call) tooLarge(bytesMax int64) error {
	c.w.Header().Set("Connection", "close")
	p := invalid("body", fmt.Sprintf("must be at most %d bytes long", bytesMax))
	p.code = codeBodyTooLarge
	return p
}

// checkMediaType accepts JSON, named or not, in UTF-8 and not compressed.
func checkMediaType(header http.Header) error {
	if encoding := header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return &problem{code: codeMediaType, detail: "Content-Encoding must be identity."}
	}
	given := header.Get("Content-Type")
	if given == "" || given == "application/json" {
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(given)
	if err != nil || mediaType != "application/json" {
		return &problem{code: codeMediaType, detail: "Content-Type must be application/json."}
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return &problem{code: codeMediaType, detail: "The charset of JSON is utf-8."}
	}
	return nil
}
