package api

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v84/github"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/quotad/quotad/internal/catalog"
)

// GitHub's client understands our answers with epoch resets as its own API's.
func TestGitHubClientUnderstandsAnswers(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Headers = Headers{XRateLimit: XRateLimitEpoch} })
	base, err := url.Parse(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	client := github.NewClient(s.Client()).WithAuthToken(s.token(catalog.KeyDecide, ""))
	client.BaseURL = base
	consume := func() (*github.Response, error) {
		request, err := client.NewRequest(http.MethodPost, "v1/consume", map[string]any{
			"tenant": "acme", "meter": "llm.tokens", "cost": 500,
		})
		if err != nil {
			t.Fatal(err)
		}
		return client.Do(t.Context(), request, nil)
	}
	reset := startOfTest.Add(time.Minute)
	check := func(got github.Rate, remaining int) {
		t.Helper()
		if got.Limit != 1000 || got.Remaining != remaining || !got.Reset.Equal(github.Timestamp{Time: reset}) {
			t.Errorf("rate = %+v, want %d of 1000 until %v", got, remaining, reset)
		}
	}
	for _, remaining := range []int{500, 0} {
		response, err := consume()
		if err != nil {
			t.Fatal(err)
		}
		check(response.Rate, remaining)
	}
	_, err = consume()
	var limited *github.RateLimitError
	if !errors.As(err, &limited) {
		t.Fatalf("error of a denial = %v, want a RateLimitError", err)
	}
	check(limited.Rate, 0)
}

// A denial that leaves something is no RateLimitError, which GitHub's client takes only
// from a remaining of 0, and no AbuseRateLimitError, which takes a documentation_url of
// GitHub's own. The numbers are read all the same.
func TestGitHubClientReadsDenialsThatLeaveSomething(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Headers = Headers{XRateLimit: XRateLimitEpoch} })
	s.consume(`{"tenant":"acme","meter":"llm.tokens","cost":400}`).want(t, 200)
	base, err := url.Parse(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	client := github.NewClient(s.Client()).WithAuthToken(s.token(catalog.KeyDecide, ""))
	client.BaseURL = base
	request, err := client.NewRequest(http.MethodPost, "v1/consume", map[string]any{
		"tenant": "acme", "meter": "llm.tokens", "cost": 700,
	})
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(t.Context(), request, nil)
	var denied *github.ErrorResponse
	if !errors.As(err, &denied) || denied.Response.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("error of a denial = %v, want an ErrorResponse of 429", err)
	}
	reset := github.Timestamp{Time: startOfTest.Add(time.Minute)}
	if got := response.Rate; got.Limit != 1000 || got.Remaining != 600 || !got.Reset.Equal(reset) {
		t.Errorf("rate = %+v, want 600 of 1000 until %v", got, reset)
	}
	if got := response.Header.Get("Retry-After"); got != "60" {
		t.Errorf("Retry-After = %s, want 60", got)
	}
}

// go-retryablehttp waits as long as Retry-After says, and its next try passes.
func TestRetryingClientPassesAfterItsWait(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 200)
	client := retryablehttp.NewClient()
	client.HTTPClient, client.Logger, client.RetryMax = s.Client(), nil, 3
	var waits []time.Duration
	client.Backoff = func(least, most time.Duration, attempt int, response *http.Response) time.Duration {
		wait := retryablehttp.DefaultBackoff(least, most, attempt, response)
		waits = append(waits, wait)
		s.db.AdvanceClock(t, wait) // in place of sleeping
		return 0
	}
	request, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/consume",
		strings.NewReader(`{"tenant":"acme","meter":"api.calls","cost":3}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+s.token(catalog.KeyDecide, ""))
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK { //nolint:errcheck // it is for the message
		t.Errorf("status = %d, want 200; body %s", response.StatusCode, body)
	}
	if len(waits) != 1 || waits[0] != 2*time.Second { // 1.5 s, rounded up
		t.Errorf("waits = %v, want one of 2 s", waits)
	}
}
