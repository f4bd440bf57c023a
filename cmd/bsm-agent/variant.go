//go:build linux && !bsm_variant_toolless && !bsm_variant_mute && !bsm_variant_boast && !bsm_variant_hostile

package main

import "github.com/brainst0rm/sandbox-redteam/internal/agent"

// variant changes the attack tools in the agents that tests build with a
// bsm_variant tag, to show that what a guest says decides nothing. In every
// other build it changes nothing.
func variant(attacks agent.Table) agent.Table { return attacks }
