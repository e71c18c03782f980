package catalog

// settingsName names the one object of its kind in changes and in the history.
const settingsName = "global"

// Bounds of the rate at which the default plan makes tenants.
const (
	DefaultPlanRate    = 600    // tenants a minute, if nothing else is configured
	DefaultPlanRateMax = 60_000 // tenants a minute
)

// Settings is what holds for the whole database.
type Settings struct {
	DefaultPlan     string // what an unknown tenant gets with its first consume; "" leaves it unknown
	DefaultPlanRate int    // tenants a minute that the default plan makes at most; 0 makes none
}

// A SettingsSpec is the settings as they are written in a file and in JSON.
type SettingsSpec struct {
	DefaultPlan     string `json:"default_plan,omitempty"`
	DefaultPlanRate *int   `json:"default_plan_rate,omitempty"` // 600 if absent
}

// Spec is the settings as they are written, in their one canonical form.
func (s Settings) Spec() SettingsSpec {
	return SettingsSpec{DefaultPlan: s.DefaultPlan, DefaultPlanRate: &s.DefaultPlanRate}
}

func (s SettingsSpec) compile(faults *faultList) {
	if s.DefaultPlan != "" && !ValidName(s.DefaultPlan) {
		faults.add("default_plan", NameRule)
	}
	if r := s.DefaultPlanRate; r != nil && (*r < 0 || *r > DefaultPlanRateMax) {
		faults.add("default_plan_rate", "must be a whole number of tenants a minute, from 0 to %d", DefaultPlanRateMax)
	}
}

// over returns the settings that come of writing s over those that there are. What s
// leaves out stays as it is or, with whole, becomes what a new database has.
func (s SettingsSpec) over(have Settings, whole bool) Settings {
	if whole {
		have = Settings{DefaultPlanRate: DefaultPlanRate}
	}
	if s.DefaultPlan != "" {
		have.DefaultPlan = s.DefaultPlan
	}
	if s.DefaultPlanRate != nil {
		have.DefaultPlanRate = *s.DefaultPlanRate
	}
	return have
}

func (s SettingsSpec) empty() bool { return s == SettingsSpec{} }
