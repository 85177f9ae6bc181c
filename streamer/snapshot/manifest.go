package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"millrace/streamer/source/postgres/pgtext"
	"millrace/streamer/watermark"
)

// ErrDamaged is wrapped by every error about a folder that is not a whole snapshot.
var ErrDamaged = errors.New("not a whole snapshot")

// Format is the version of the folder's layout.
const Format = 1

const (
	manifestName = "manifest.json"
	digestField  = `"digest": "`

	maxColumns = 1600 // of a table in PostgreSQL
)

// Manifest says what is in a folder.
type Manifest struct {
	// Digest is the SHA-256 of the manifest's file in which the digest itself is zeros.
	Digest string `json:"digest"`
	Format int    `json:"format"`

	ReplicaVersion string    `json:"replica_version"` // the history that Watermark belongs to
	Watermark      string    `json:"watermark"`       // everything committed up to here is in the copy
	CreatedAt      time.Time `json:"created_at"`      // upstream's time at that moment
	Publications   []string  `json:"publications"`

	Compression Compression `json:"compression"`
	// Raw says that text is as it was stored, in an encoding that nobody knows.
	Raw bool `json:"raw,omitempty"`

	Types  []Type  `json:"types,omitempty"` // those that are not built in
	Tables []Table `json:"tables"`
}

// Type is a type of upstream's catalog: pg_type, and for an array its element.
type Type struct {
	OID      uint32 `json:"oid"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`     // typtype
	Category string `json:"category"` // typcategory
	Len      int16  `json:"len"`
	Delim    string `json:"delim"`
	Base     uint32 `json:"base,omitempty"`
	Elem     *Type  `json:"elem,omitempty"`
}

// Table is a table as the stream names it, and its file.
type Table struct {
	Schema          string   `json:"schema"`
	Name            string   `json:"name"`
	ReplicaIdentity string   `json:"replica_identity"` // default, index, full or nothing
	Columns         []Column `json:"columns"`

	File     string `json:"file"`
	Rows     int64  `json:"rows"`
	RawBytes int64  `json:"raw_bytes"` // before compression
	Bytes    int64  `json:"bytes"`     // of the file
	SHA256   string `json:"sha256"`    // of the file
}

// Column is a column that the stream sends.
type Column struct {
	Name    string `json:"name"`
	TypeOID uint32 `json:"type_oid"`
	Type    string `json:"type"`          // as a person writes it
	Key     bool   `json:"key,omitempty"` // of the replica identity
}

// identities are the words for the letters of pg_class.relreplident.
var identities = map[byte]string{'d': "default", 'i': "index", 'f': "full", 'n': "nothing"}

// IdentityName is the word for a letter of pg_class.relreplident.
func IdentityName(letter byte) string { return identities[letter] }

// identityLetter is the letter for a word.
func identityLetter(name string) (byte, bool) {
	for letter, word := range identities {
		if word == name {
			return letter, true
		}
	}
	return 0, false
}

// FromCatalog returns the type that a row of pg_type describes.
func FromCatalog(row pgtext.CatalogType) Type {
	t := Type{
		OID: row.OID, Name: row.Name, Kind: letter(row.Type), Category: letter(row.Category),
		Len: row.Len, Delim: letter(row.Delim), Base: row.Base,
	}
	if row.Elem != nil {
		elem := FromCatalog(*row.Elem)
		t.Elem = &elem
	}
	return t
}

func (t *Type) catalog() pgtext.CatalogType {
	row := pgtext.CatalogType{
		OID: t.OID, Name: t.Name, Type: first(t.Kind), Category: first(t.Category),
		Len: t.Len, Delim: first(t.Delim), Base: t.Base,
	}
	if t.Elem != nil {
		elem := t.Elem.catalog()
		row.Elem = &elem
	}
	return row
}

func letter(b byte) string {
	if b == 0 {
		return ""
	}
	return string(rune(b))
}

func first(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

// encode returns the manifest's file, with the digest.
func (m Manifest) encode() ([]byte, error) {
	m.Format = Format
	m.Digest = strings.Repeat("0", 2*sha256.Size)
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	content = append(content, '\n')
	at, ok := digestAt(content)
	if !ok {
		return nil, errors.New("there is no place for the digest")
	}
	sum := sha256.Sum256(content)
	hex.Encode(content[at:], sum[:])
	return content, nil
}

// digestAt returns where the digest stands: it is the first field.
func digestAt(content []byte) (at int, ok bool) {
	i := bytes.Index(content, []byte(digestField))
	at = i + len(digestField)
	return at, i >= 0 && at+2*sha256.Size <= len(content)
}

// readManifest reads and checks the manifest of a folder. What is said in it about files
// is not compared with them.
func readManifest(dir string) (*Manifest, error) {
	content, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no %s; it is not one, or its making was interrupted: make another one", ErrDamaged, manifestName)
	}
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, manifestName, err)
	}
	return m, nil
}

func decodeManifest(content []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(content, &m); err != nil {
		return nil, err
	}
	if m.Format != Format {
		return nil, fmt.Errorf("its format is %d; this program knows format %d", m.Format, Format)
	}
	at, ok := digestAt(content)
	if !ok || string(content[at:at+len(m.Digest)]) != m.Digest || len(m.Digest) != 2*sha256.Size {
		return nil, errors.New("it has no digest")
	}
	zeroed := slices.Clone(content)
	copy(zeroed[at:], strings.Repeat("0", 2*sha256.Size))
	if sum := sha256.Sum256(zeroed); hex.EncodeToString(sum[:]) != m.Digest {
		return nil, errors.New("it has been changed: its digest is another one")
	}
	return &m, m.check()
}

func (m *Manifest) check() error {
	if err := watermark.Check(m.ReplicaVersion); err != nil {
		return fmt.Errorf("replica version: %w", err)
	}
	if _, err := watermark.LSN(m.Watermark); err != nil {
		return err
	}
	if _, err := m.Compression.extension(); err != nil {
		return err
	}
	files := map[string]bool{}
	for i := range m.Tables {
		t := &m.Tables[i]
		if err := t.check(); err != nil {
			return fmt.Errorf("table %q.%q: %w", t.Schema, t.Name, err)
		}
		if files[t.File] {
			return fmt.Errorf("table %q.%q: file %s has another table", t.Schema, t.Name, t.File)
		}
		files[t.File] = true
	}
	return nil
}

func (t *Table) check() error {
	if !tableFile.MatchString(t.File) || strings.HasSuffix(t.File, temporary) {
		return fmt.Errorf("%q is no name of its file", t.File)
	}
	if _, ok := identityLetter(t.ReplicaIdentity); !ok {
		return fmt.Errorf("%q is no replica identity", t.ReplicaIdentity)
	}
	if len(t.Columns) > maxColumns || t.Rows < 0 || t.Bytes < 0 || t.RawBytes < 0 {
		return errors.New("a number in it cannot be")
	}
	names := []string{t.Schema, t.Name}
	for _, c := range t.Columns {
		names = append(names, c.Name)
	}
	for _, name := range names {
		if name == "" || strings.IndexByte(name, 0) >= 0 {
			return fmt.Errorf("%q is no name", name)
		}
	}
	return nil
}
