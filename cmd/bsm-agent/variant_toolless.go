//go:build linux && bsm_variant_toolless

package main

import "github.com/brainst0rm/sandbox-redteam/internal/agent"

// variant removes every attack tool.
func variant(agent.Table) agent.Table { return nil }
