package main

import (
	"context"

	"github.com/quotad/quotad/internal/loadgen"
)

// loadSpec is the task of the client process.
type loadSpec struct {
	task
	URLs   []string `json:"urls"`
	Token  string   `json:"token"`
	Names  []string `json:"names"` // of the tenants that requests are spread over
	Batch  int      `json:"batch"` // items a call; 0: one, by itself
	DryRun bool     `json:"dry_run"`
	// Each sends one request for each tenant and ends.
	Each bool `json:"each"`
}

// runLoad sends requests over connections of its own.
func runLoad(ctx context.Context, spec loadSpec) (m measurement, err error) {
	client := loadgen.Client{URLs: spec.URLs, Token: spec.Token, Batch: spec.Batch, Strict: true}
	for _, name := range spec.Names {
		client.Items = append(client.Items, loadgen.Item{Tenant: name, Body: callBody(name, spec.DryRun)})
	}
	if spec.Each {
		m.Total, err = client.Each(ctx)
		return m, err
	}
	return spec.run(func(d loadgen.Drive) (loadgen.Measurement, error) { return client.Run(ctx, d) })
}
