package main

import (
	"encoding/json"
	"runtime/debug"
	"slices"
	"strings"
)

// bill is the part of a CycloneDX 1.6 bill of materials that is written. It has
// neither time nor serial number: both would differ between equal builds.
// It is written here, from what the linker recorded, and not by a tool that
// would have to be trusted with the job that holds the release's permissions.
type bill struct {
	BOMFormat    string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// billOf lists what is linked into the program: the modules with the digests of
// go.sum, and the standard library.
func billOf(version, platform, digest string, info *debug.BuildInfo) ([]byte, error) {
	self := library(info.Main.Path, version)
	self.Type = "application"
	self.Hashes = []hash{{"SHA-256", digest}}
	self.Properties = []property{{"bsm:platform", platform}}
	list := []component{library("std", info.GoVersion[len("go"):])}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := library(m.Path, m.Version)
		c.Properties = []property{{"go.sum", m.Sum}}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	root := dependency{Ref: self.Ref}
	for _, c := range list {
		root.DependsOn = append(root.DependsOn, c.Ref)
	}
	text, err := json.MarshalIndent(bill{BOMFormat: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{self}, Components: list, Dependencies: []dependency{root}}, "", "  ")
	return append(text, '\n'), err
}

func library(path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
}
