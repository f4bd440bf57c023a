package canary

import "os"

// EnvName is the variable that holds a secret: of a canary process, and of the
// harness itself once PlantEnv was called.
const EnvName = "BSM_CANARY_ENV"

// PlantEnv puts a secret into the environment of this process, so that a backend
// that hands its own environment on is noticed. Call it once, before a sandbox
// is booted. A token that is there already stays.
func PlantEnv() error {
	if len(os.Getenv(EnvName)) == TokenLen {
		return nil
	}
	return os.Setenv(EnvName, NewToken())
}
