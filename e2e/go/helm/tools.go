//go:build tools

// Package tools pins the programs built here, so that go.mod and go.sum cover them.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
