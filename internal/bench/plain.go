package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
)

// plainCmd serves what an HTTP service in Go costs before it does anything: chi, the
// request decoded, the answer encoded, with encoding/json as usual.
type plainCmd struct{}

// plainSpec is a real answer of quotad: the plain one has its headers and its shape.
type plainSpec struct {
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// plainRequest is the body of a request.
type plainRequest struct {
	Tenant string           `json:"tenant"`
	Meter  string           `json:"meter"`
	Pools  map[string]int64 `json:"pools"`
}

// plainAnswer is the body of an allowed answer, in quotad's order.
type plainAnswer struct {
	Allowed   bool          `json:"allowed"`
	Tenant    string        `json:"tenant"`
	RequestID string        `json:"request_id"`
	DecidedAt time.Time     `json:"decided_at"`
	Charges   []plainCharge `json:"charges"`
	Remaining int64         `json:"remaining"`
	Limits    []plainLimit  `json:"limits"`
	Receipt   plainReceipt  `json:"receipt"`
}

type plainCharge struct {
	Meter string `json:"meter"`
	Cost  int64  `json:"cost"`
}

type plainLimit struct {
	Name      string `json:"name"`
	Meter     string `json:"meter"`
	Unit      string `json:"unit"`
	Algorithm string `json:"algorithm"`
	Scope     string `json:"scope"`
	Mode      string `json:"mode"`
	Limit     int64  `json:"limit"`
	Used      int64  `json:"used"`
	Held      int64  `json:"held"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_after_ms"`
	ResetAt   string `json:"reset_at"`
}

type plainReceipt struct {
	FirstSeq int64  `json:"first_seq"`
	Seq      int64  `json:"seq"`
	Hash     string `json:"hash"`
}

// Run serves until a signal.
func (plainCmd) Run(ctx context.Context, s streams) error {
	var spec plainSpec
	if err := json.NewDecoder(s.In).Decode(&spec); err != nil {
		return fmt.Errorf("read the answer to give: %w", err)
	}
	handler, err := plainHandler(spec)
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "listening on http://%s\n", listener.Addr())
	// The bounds are those that quotad serves with: each of them costs something.
	served := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      45 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	stopped := context.AfterFunc(ctx, func() { served.Close() })
	defer stopped()
	if err := served.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// plainHandler answers every request like spec, but for the tenant and the cost. It
// fails where quotad's answer has grown a member that the plain one lacks.
func plainHandler(spec plainSpec) (http.Handler, error) {
	var pattern plainAnswer
	decoder := json.NewDecoder(bytes.NewReader(spec.Body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&pattern); err != nil {
		return nil, fmt.Errorf("quotad's answer is not what the plain one is modelled on: %w", err)
	}
	again, err := json.Marshal(&pattern)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, spec.Body) {
		return nil, fmt.Errorf("quotad answers %s, and the plain one would %s", spec.Body, again)
	}
	if len(pattern.Charges) != 1 {
		return nil, fmt.Errorf("quotad answers %s, want one charge", spec.Body)
	}
	for _, name := range []string{"Date", "Content-Length"} { // net/http writes them
		spec.Header.Del(name)
	}
	mux := chi.NewMux()
	mux.Post("/v1/consume", func(w http.ResponseWriter, r *http.Request) {
		var asked plainRequest
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := pattern
		answer.Tenant = asked.Tenant
		answer.Charges = []plainCharge{{Meter: asked.Meter, Cost: asked.Pools["input_tokens"] + outputWeight*asked.Pools["output_tokens"]}}
		body, err := json.Marshal(&answer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		for name, values := range spec.Header {
			w.Header()[name] = values
		}
		w.Write(body) //nolint:errcheck // the caller is gone; there is no one to tell
	})
	return mux, nil
}
