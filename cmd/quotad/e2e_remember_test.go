package main

import (
	"net/http"
	"testing"
)

func TestServeRemembersDenialsUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	token := configure(t, db, `
meters:
  api.calls: {unit: call}
plans:
  none:
    limits:
      - {name: one, meter: api.calls, algorithm: fixed_window, limit: 1, window: year}
tenants:
  acme: {plan: none}
`)
	for _, tt := range []struct {
		flags      []string
		remembered bool
	}{{nil, true}, {[]string{"--no-remember-denials"}, false}} {
		i := startServe(t, db, tt.flags...)
		for range 20 {
			status, err := consume(t.Context(), i.url, token)
			if err != nil || status != http.StatusOK && status != http.StatusTooManyRequests {
				t.Fatalf("%v: consume = %d, %v", tt.flags, status, err)
			}
		}
		const name = "quotad_denials_remembered_total"
		if n := metricsOf(t, []string{i.url}, name)[name]; n > 0 != tt.remembered {
			t.Errorf("serve %v has given %v denials again", tt.flags, n)
		}
		i.stop(t, sigterm)
	}
}
