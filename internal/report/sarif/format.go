package sarif

// The part of SARIF 2.1.0 that is written, in the words of the standard. A list
// that may be empty is never null.
type log struct {
	Schema  string `json:"$schema"`
	Version string `json:"version"`
	Runs    []run  `json:"runs"`
}

type run struct {
	Tool              tool              `json:"tool"`
	AutomationDetails automationDetails `json:"automationDetails"`
	Invocations       []invocation      `json:"invocations"`
	Results           []result          `json:"results"`
}

type tool struct {
	Driver driver `json:"driver"`
}

type driver struct {
	Name           string `json:"name"`
	InformationURI string `json:"informationUri"`
	Version        string `json:"version,omitempty"`
	Rules          []rule `json:"rules"`
}

type automationDetails struct {
	ID string `json:"id"`
}

type invocation struct {
	ExecutionSuccessful        bool           `json:"executionSuccessful"`
	EndTimeUTC                 string         `json:"endTimeUtc,omitempty"`
	ToolExecutionNotifications []notification `json:"toolExecutionNotifications"`
}

type notification struct {
	Level          string         `json:"level"`
	Message        message        `json:"message"`
	AssociatedRule *ruleReference `json:"associatedRule,omitempty"`
}

type ruleReference struct {
	ID    string `json:"id"`
	Index int    `json:"index"`
}

type rule struct {
	ID                   string         `json:"id"`
	Name                 string         `json:"name"`
	ShortDescription     message        `json:"shortDescription"`
	FullDescription      message        `json:"fullDescription"`
	Help                 message        `json:"help"`
	HelpURI              string         `json:"helpUri"`
	DefaultConfiguration configuration  `json:"defaultConfiguration"`
	Properties           ruleProperties `json:"properties"`
}

type configuration struct {
	Level string `json:"level"`
}

type ruleProperties struct {
	Tags []string `json:"tags"`
	// SecuritySeverity is a number in a string, as GitHub wants it.
	SecuritySeverity string `json:"security-severity,omitempty"`
}

type message struct {
	Text     string `json:"text"`
	Markdown string `json:"markdown,omitempty"`
}

type result struct {
	RuleID              string            `json:"ruleId"`
	RuleIndex           int               `json:"ruleIndex"`
	Level               string            `json:"level"`
	Message             message           `json:"message"`
	Locations           []location        `json:"locations"`
	PartialFingerprints map[string]string `json:"partialFingerprints"`
	Properties          resultProperties  `json:"properties"`
}

type resultProperties struct {
	Backend          string `json:"backend"`
	Verdict          string `json:"verdict"`
	Severity         string `json:"severity,omitempty"`
	ValidatedAgainst string `json:"validatedAgainst"`
}

type location struct {
	PhysicalLocation physicalLocation `json:"physicalLocation"`
}

type physicalLocation struct {
	ArtifactLocation artifactLocation `json:"artifactLocation"`
	Region           region           `json:"region"`
}

type artifactLocation struct {
	URI string `json:"uri"`
}

type region struct {
	StartLine int `json:"startLine"`
}
