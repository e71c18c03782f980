package api

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quotad/quotad/internal/ledger"
)

// A format is the form of a list: pages of JSON, or a stream of all of it.
type format string

const (
	formatJSON   format = "json"
	formatCSV    format = "csv"    // RFC 4180, with a header row
	formatNDJSON format = "ndjson" // one JSON object a line
)

// format returns the parameter format or, without it, what the Accept header prefers.
func (f *filter) format(header http.Header) format {
	if f.values.Has("format") {
		return format(f.text("format", oneOf(string(formatJSON), string(formatCSV), string(formatNDJSON))))
	}
	best, most := formatJSON, 0.0
	for part := range strings.SplitSeq(strings.Join(header["Accept"], ","), ",") {
		mediaType, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		accepted, known := acceptable[mediaType]
		quality := 1.0
		if text, given := params["q"]; given {
			quality, err = strconv.ParseFloat(text, 64)
		}
		if known && err == nil && quality > most {
			best, most = accepted, quality
		}
	}
	return best
}

var acceptable = map[string]format{
	"text/csv": formatCSV, "application/x-ndjson": formatNDJSON,
	"application/json": formatJSON, "application/*": formatJSON, "*/*": formatJSON,
}

// streamHeaders are what a stream is sent as, by format.
var streamHeaders = map[format]struct{ contentType, disposition string }{
	formatCSV:    {"text/csv; charset=utf-8; header=present", `attachment; filename="entries.csv"`},
	formatNDJSON: {"application/x-ndjson", `attachment; filename="entries.ndjson"`},
}

// chunkWriteMax is how long a reader may take for one chunk of a stream. There is no
// bound on the whole: a large ledger takes as long as it takes.
const chunkWriteMax = 30 * time.Second

// exportEntries streams all entries that the query selects and that are there now.
// Each chunk is a page, read by short statements of its own, so that a slow reader
// holds nothing of the database. A stream that cannot go on is broken off without its
// end, so that no reader takes it for the whole.
func (h *Handler) exportEntries(c *call, q entryListQuery) error {
	q.Limit = ledger.EntriesMax
	list, page, err := h.firstChunk(c, q.EntryQuery)
	if err != nil {
		return ledgerTenantNotFound(err)
	}
	header := c.w.Header()
	header.Set("Content-Type", streamHeaders[q.format].contentType)
	header.Set("Content-Disposition", streamHeaders[q.format].disposition)
	header["Cache-Control"] = headerNoStore
	c.status = http.StatusOK
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return nil
	}
	c.out = c.out[:0]
	if q.format == formatCSV {
		c.out = appendCSVHeader(c.out)
	}
	for {
		for i := range page.Entries {
			if c.out, err = appendEntry(c.out, q.format, &page.Entries[i]); err != nil {
				h.breakOff(c, err)
			}
		}
		if !c.writeChunk() {
			c.status = statusClientGone
			return nil
		}
		if page.NextSeq == 0 {
			return nil
		}
		if page, err = nextChunk(c, list); err != nil {
			h.breakOff(c, err)
		}
	}
}

// firstChunk begins a stream: until here an error can still be an answer.
func (h *Handler) firstChunk(c *call, q ledger.EntryQuery) (*ledger.EntryList, ledger.EntryPage, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), readTimeout)
	defer cancel()
	list, err := h.entryList(ctx, q)
	if err != nil {
		return nil, ledger.EntryPage{}, err
	}
	page, err := list.Next(ctx)
	return list, page, err
}

func nextChunk(c *call, list *ledger.EntryList) (ledger.EntryPage, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), readTimeout)
	defer cancel()
	return list.Next(ctx)
}

func appendEntry(b []byte, form format, e *ledger.Entry) ([]byte, error) {
	if form == formatCSV {
		return appendCSVEntry(b, e)
	}
	line, err := stdjson.Marshal(newEntryBody(e))
	return append(append(b, line...), '\n'), err
}

// writeChunk sends what is in c.out. It returns false if the reader is gone.
func (c *call) writeChunk() bool {
	if len(c.out) == 0 {
		return true
	}
	controller := http.NewResponseController(c.w)
	if err := controller.SetWriteDeadline(time.Now().Add(c.h.chunkWriteMax)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return false
	}
	_, err := c.w.Write(c.out)
	c.out = c.out[:0]
	return err == nil && controller.Flush() == nil
}

// breakOff ends a stream that has begun and cannot go on: the connection is closed
// without the last chunk, which every client takes for an error.
func (h *Handler) breakOff(c *call, err error) {
	if c.r.Context().Err() != nil {
		c.status = statusClientGone
		panic(http.ErrAbortHandler)
	}
	c.status = http.StatusInternalServerError // for the metrics
	h.log.LogAttrs(c.r.Context(), slog.LevelError, "an export was broken off",
		slog.String("route", c.route),
		slog.String("tenant", c.tenant),
		slog.Any("cause", err))
	panic(http.ErrAbortHandler)
}
