//go:build clients

package api

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// Client libraries of Node understand our answers: ratelimit-header-parser each dialect
// that it knows, OpenAI's own client the fields of its own API. `make clients` installs
// them first.
func TestNodeClientsUnderstandAnswers(t *testing.T) {
	t.Parallel()
	servers, keys := map[string]string{}, map[string]string{}
	start := func(dialect string, headers Headers) *service {
		s := newService(t, func(c *Config) { c.Headers = headers })
		servers[dialect], keys[dialect] = s.URL, s.token(catalog.KeyDecide, "")
		return s
	}
	start("delta", Headers{RateLimit: RateLimitOff})
	start("epoch", Headers{RateLimit: RateLimitOff, XRateLimit: XRateLimitEpoch})
	start("draft7", Headers{RateLimit: RateLimitDraft7})
	model := httptest.NewServer(languageModel(start("openai", Headers{OpenAI: true})))
	t.Cleanup(model.Close)
	servers["openai"] = model.URL

	clients, err := json.Marshal(servers)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", "clients.mjs")
	node.Dir = "../../test/clients"
	node.Env = append(os.Environ(), "CLIENTS="+string(clients), "KEYS="+string(tokens))
	output, err := node.CombinedOutput()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, output)
	}
	t.Log(string(output))
}

// languageModel is what stands between OpenAI's client and us: a service that asks
// before it answers, and passes our header fields, and a denial whole, to its caller.
// The database's clock runs with the real one from here on.
func languageModel(s *service) http.Handler {
	began := time.Now()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.db.SetClock(s.t, startOfTest.Add(time.Since(began)))
		ask, err := http.NewRequestWithContext(r.Context(), http.MethodPost, s.URL+"/v1/consume", strings.NewReader(
			`{"tenant":"acme","charges":[{"meter":"api.calls"},{"meter":"llm.tokens","pools":{"input":10,"output":5}}]}`))
		if err != nil {
			s.t.Error(err)
			return
		}
		ask.Header.Set("Authorization", r.Header.Get("Authorization"))
		answer, err := s.Client().Do(ask)
		if err != nil {
			s.t.Error(err)
			return
		}
		defer answer.Body.Close()
		maps.Copy(w.Header(), answer.Header)
		w.Header().Del("Content-Length")
		w.WriteHeader(answer.StatusCode)
		if answer.StatusCode != http.StatusOK {
			io.Copy(w, answer.Body) //nolint:errcheck // the client will say so
			return
		}
		io.WriteString(w, `{"id":"c1","object":"chat.completion","created":1,"model":"small","choices":[
			{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hello"}}]}`) //nolint:errcheck // as above
	})
}
