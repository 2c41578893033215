//go:build tools

// Package tools pins the programs built here, so that go.mod and go.sum cover them.
package tools

import (
	_ "sigs.k8s.io/cri-tools/cmd/crictl"
)
