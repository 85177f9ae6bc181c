package postgres

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

const maxIdentifier = 63

var (
	appPattern         = regexp.MustCompile(`^[a-z0-9_]+$`)
	publicationPattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	slotPattern        = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// ErrAppID is the error about an application ID that is not one.
var ErrAppID = errors.New("The App ID may only consist of lower-case letters, numbers, and the underscore character") //nolint:staticcheck // the peer's text

// CheckApp checks an application ID: it is part of the names of slots and publications.
func CheckApp(app string) error {
	if !appPattern.MatchString(app) {
		return ErrAppID
	}
	return nil
}

// CheckPublication checks the form of a publication's name.
func CheckPublication(name string) error {
	if !publicationPattern.MatchString(name) {
		return fmt.Errorf("Invalid publication name %q. Publication names must start with a letter or underscore and contain only letters, digits, and underscores.", name) //nolint:revive,staticcheck // the peer's text
	}
	if len(name) > maxIdentifier {
		return fmt.Errorf("Publication name %q exceeds PostgreSQL's 63-character identifier limit (%d characters)", name, len(name)) //nolint:staticcheck // the peer's text
	}
	return nil
}

// CheckGivenPublication checks a name that a person has chosen: those that begin with an
// underscore are kept for our own.
func CheckGivenPublication(name string) error {
	if strings.HasPrefix(name, "_") {
		return fmt.Errorf("Publication names starting with \"_\" are reserved for internal use.\nPlease use a different name for publication %q.", name) //nolint:revive,staticcheck // the peer's text
	}
	return CheckPublication(name)
}

// DefaultPublication is the name of the publication of all tables in schema public that
// is used where none is named.
func DefaultPublication(app string, shard int) string {
	return fmt.Sprintf("_%s_public_%d", app, shard)
}

// CheckSlot checks a slot's name as the server would.
func CheckSlot(name string) error {
	if !slotPattern.MatchString(name) {
		return fmt.Errorf("slot %q: a slot's name has 1 to 63 lower-case letters, digits and underscores", name)
	}
	return nil
}

func quoteIdentifier(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

func quoteLiteral(text string) string {
	return `'` + strings.ReplaceAll(text, `'`, `''`) + `'`
}

// publicationList quotes names as the plugin reads them: a list of identifiers inside
// one literal.
func publicationList(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quoteIdentifier(name)
	}
	return quoteLiteral(strings.Join(quoted, ","))
}
