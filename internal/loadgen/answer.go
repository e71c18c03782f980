package loadgen

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

const answerBytesMax = 8 << 20 // a batch of the most items, with the most limits that are usual

var errAnswer = errors.New("what came is no answer of HTTP/1.1")

// An answer is one that was read. Its body holds until the next.
type answer struct {
	status int
	body   []byte
	close  bool // the connection ends with it
}

// read reads one answer, of a server or of a proxy before it.
func (a *answer) read(r *bufio.Reader) error {
	for {
		if err := a.readHead(r); err != nil || a.status >= http.StatusOK {
			return err
		}
	}
}

// readHead reads status, headers, and the body if there is one.
func (a *answer) readHead(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return fmt.Errorf("%w: it begins with %q", errAnswer, line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return fmt.Errorf("%w: it begins with %q", errAnswer, line)
	}
	length, chunked := -1, false
	a.close = false
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return fmt.Errorf("read an answer: %w", err)
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch value = bytes.TrimSpace(value); {
		case is(name, "content-length"):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return fmt.Errorf("%w: %q", errAnswer, line)
			}
		case is(name, "transfer-encoding"):
			chunked = is(value, "chunked")
		case is(name, "connection"):
			a.close = is(value, "close")
		}
	}
	if a.status < http.StatusOK {
		return nil
	}
	return a.readBody(r, length, chunked)
}

// is compares without regard to case.
func is(have []byte, want string) bool {
	return len(have) == len(want) && bytes.EqualFold(have, []byte(want))
}

func (a *answer) readBody(r *bufio.Reader, length int, chunked bool) (err error) {
	switch {
	case chunked:
		if a.body, err = io.ReadAll(io.LimitReader(httputil.NewChunkedReader(r), answerBytesMax)); err != nil {
			return fmt.Errorf("read an answer: %w", err)
		}
		if end, err := r.ReadSlice('\n'); err != nil || len(bytes.TrimRight(end, "\r\n")) > 0 {
			return fmt.Errorf("%w: it ends with %q, %w", errAnswer, end, err)
		}
		return nil
	case length < 0 || length > answerBytesMax:
		return fmt.Errorf("%w: it does not say its length, or is too long", errAnswer)
	}
	a.body = slices.Grow(a.body[:0], length)[:length]
	if _, err := io.ReadFull(r, a.body); err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	return nil
}

// A target is an item's body, and how the answer to it begins when it is allowed.
type target struct {
	body    []byte
	allowed []byte
}

func newTarget(i Item) target {
	tenant, _ := jsontext.AppendQuote(nil, i.Tenant)
	return target{body: []byte(i.Body), allowed: fmt.Appendf(nil, `{"allowed":true,"tenant":%s,`, tenant)}
}

var (
	isDegraded  = []byte(`"degraded":true`)
	isDenied    = []byte(`"allowed":false`)
	batchAllows = []byte(`{"status":200,`)
	batchDenies = []byte(`{"status":429,`)
)

// judge wants an answer to be allowed and about the tenant, or denied. What was granted
// without the database is a failure of it.
func (c *caller) judge() Outcome {
	a := &c.answer
	if c.Batch > 1 && a.status == http.StatusOK {
		return c.judgeBatch()
	}
	if a.status == http.StatusOK && bytes.HasPrefix(a.body, c.asked[0].allowed) && !bytes.Contains(a.body, isDegraded) {
		return Outcome{Counts: Counts{Allowed: 1}}
	}
	if a.status == http.StatusTooManyRequests && bytes.Contains(a.body, isDenied) && c.Batch <= 1 {
		return Outcome{Counts: Counts{Denied: 1}}
	}
	return failed(kindOfAnswer(a.status, a.body), int64(len(c.asked)), example(a.body))
}

// judgeBatch counts the results. They are looked at one by one only if any is neither.
func (c *caller) judgeBatch() Outcome {
	body := c.answer.body
	o := Outcome{Counts: Counts{Allowed: int64(bytes.Count(body, batchAllows)), Denied: int64(bytes.Count(body, batchDenies))}}
	if o.Decisions() == int64(len(c.asked)) && !bytes.Contains(body, isDegraded) {
		return o
	}
	var batch struct {
		Results []struct {
			Status int             `json:"status"`
			Body   json.RawMessage `json:"body"`
		} `json:"results"`
	}
	if err := json.Unmarshal(body, &batch); err != nil || len(batch.Results) != len(c.asked) {
		return failed("not an answer to the batch", int64(len(c.asked)), example(body))
	}
	o = Outcome{}
	for _, r := range batch.Results {
		switch {
		case r.Status == http.StatusOK && !bytes.Contains(r.Body, isDegraded):
			o.Allowed++
		case r.Status == http.StatusTooManyRequests && bytes.Contains(r.Body, isDenied):
			o.Denied++
		default:
			one := failed(kindOfAnswer(r.Status, r.Body), 1, example(r.Body))
			o.Failed++
			o.Failures = append(o.Failures, one.Failures...)
		}
	}
	return o
}

// kindOfAnswer is the status, and the code of the problem if it is one.
func kindOfAnswer(status int, body []byte) string {
	var problem struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(body, &problem) // a proxy's is none
	switch {
	case status == http.StatusOK && bytes.Contains(body, isDegraded):
		return "200 degraded"
	case status == http.StatusOK:
		return "200 not what was asked for"
	case problem.Code == "":
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status) + " " + problem.Code
}

// exampleMax is how much of an answer is shown.
const exampleMax = 300

func example(body []byte) string { return string(body[:min(len(body), exampleMax)]) }
