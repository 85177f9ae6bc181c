package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	// inProgress is there while a folder is written, and is locked by whoever writes.
	inProgress = "in-progress"
	// temporary ends the name of a file that is not whole yet.
	temporary = ".tmp"

	// What is in a copy is nobody's business but its owner's.
	folderMode = 0o700
	fileMode   = 0o600

	maxNamePart = 60 // characters of a file's name that tell a reader which table it is
)

// tableFile matches the names of files of tables, temporary ones too.
var tableFile = regexp.MustCompile(`^[0-9]{5,}-[A-Za-z0-9_-]+\.copy(\.zst|\.gz)?(\.tmp)?$`)

// Folder is a folder that is being written. Tables may be written at once, each by one
// goroutine.
type Folder struct {
	dir         string
	compression Compression
	extension   string
	made        bool     // the folder was not there before
	lock        *os.File // in-progress
}

// Create makes a folder, or takes one that is empty, or that has nothing but what an
// interrupted run left behind: that is removed. Any other one is refused, and so is one
// that somebody is writing to.
func Create(dir string, compression Compression) (*Folder, error) {
	extension, err := compression.extension()
	if err != nil {
		return nil, err
	}
	f := &Folder{dir: dir, compression: compression, extension: extension}
	if err := f.begin(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Folder) begin() (err error) {
	if _, err := os.Stat(f.dir); errors.Is(err, fs.ErrNotExist) {
		f.made = true
	}
	if err := os.MkdirAll(f.dir, folderMode); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	if f.made {
		if err := syncFolder(filepath.Dir(f.dir)); err != nil {
			return err
		}
	}
	// Looked at before anything is touched.
	marked, _, err := f.look()
	if err != nil {
		return err
	}
	if err := f.takeLock(!marked); err != nil {
		return err
	}
	// Whoever had the lock until now may have written more.
	_, leftovers, err := f.look()
	for _, name := range leftovers {
		if err == nil {
			err = os.Remove(filepath.Join(f.dir, name))
		}
	}
	if err == nil {
		err = syncFolder(f.dir)
	}
	if err != nil {
		return errors.Join(err, f.lock.Close())
	}
	return nil
}

// look returns whether the folder is marked as being written, and its other files, if
// they can be taken for what an interrupted run left behind.
func (f *Folder) look() (marked bool, leftovers []string, err error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return false, nil, fmt.Errorf("look into the folder: %w", err)
	}
	strange := ""
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == manifestName:
			return false, nil, fmt.Errorf("folder %s has a snapshot already: name another one, or remove it", f.dir)
		case name == inProgress:
			marked = true
		case entry.Type().IsRegular() && (name == manifestName+temporary || tableFile.MatchString(name)):
			leftovers = append(leftovers, name)
		default:
			strange = cmp.Or(strange, name)
		}
	}
	if strange == "" && len(leftovers) > 0 && !marked {
		strange = leftovers[0]
	}
	if strange != "" {
		return false, nil, fmt.Errorf("folder %s is not empty: it has %s; name another one", f.dir, strange)
	}
	return marked, leftovers, nil
}

// takeLock makes this process the only one that writes. The mark is durable before
// anything else is.
func (f *Folder) takeLock(fresh bool) error {
	name := filepath.Join(f.dir, inProgress)
	for {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, fileMode)
		if err != nil {
			return fmt.Errorf("mark the folder: %w", err)
		}
		if err := f.tryLock(file); err != nil {
			return errors.Join(err, file.Close())
		}
		if !isAt(file, name) { // whoever had it removed it just now
			_ = file.Close() // it was only locked
			continue
		}
		if err := sign(file); err != nil {
			err = fmt.Errorf("mark the folder: %w", err)
			if fresh {
				err = errors.Join(err, os.Remove(name))
			}
			return errors.Join(err, file.Close())
		}
		f.lock = file
		return nil
	}
}

func (f *Folder) tryLock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock the folder: %w", err)
	}
	holder, _ := io.ReadAll(io.LimitReader(file, 200)) // a detail for people
	return fmt.Errorf("folder %s is being written by another one (%s): name another folder, or end that",
		f.dir, cmp.Or(strings.TrimSpace(string(holder)), "which has only begun"))
}

// isAt says whether name is still that of the file.
func isAt(file *os.File, name string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(name)
	return err == nil && os.SameFile(opened, named)
}

// sign writes who we are, for people.
func sign(file *os.File) error {
	host, _ := os.Hostname()
	if err := file.Truncate(0); err != nil {
		return err
	}
	text := fmt.Sprintf("process %d on %s since %s\n", os.Getpid(), host, time.Now().Format(time.RFC3339))
	if _, err := file.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	return file.Sync()
}

// syncFolder makes the names in a folder durable.
func syncFolder(dir string) (err error) {
	folder, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if err := folder.Sync(); err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	return nil
}

// fileName is the name of a table's file. The number makes it one of its own, whatever
// the table is called; the rest is for readers.
func (f *Folder) fileName(number int, schema, table string) string {
	part := strings.Map(plain, schema) + "-" + strings.Map(plain, table)
	if len(part) > maxNamePart {
		part = part[:maxNamePart]
	}
	return fmt.Sprintf("%05d-%s.copy%s", number, part, f.extension)
}

// plain leaves what is a plain character in every file system.
func plain(r rune) rune {
	if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return '_'
}

// Finish writes the manifest: the folder is whole then, and durable. The files of all its
// tables must be finished.
func (f *Folder) Finish(m Manifest) error {
	if err := syncFolder(f.dir); err != nil { // no manifest before the names of the files
		return err
	}
	m.Compression = f.compression
	content, err := m.encode()
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	name := filepath.Join(f.dir, manifestName)
	if err := writeDurably(name+temporary, content); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	if err := os.Rename(name+temporary, name); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	if err := syncFolder(f.dir); err != nil {
		return err
	}
	// The mark says nothing any more; where it stays it does no harm.
	_ = os.Remove(filepath.Join(f.dir, inProgress))
	_ = f.lock.Close()
	return nil
}

func writeDurably(name string, content []byte) (err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(content); err != nil {
		return err
	}
	return file.Sync()
}

// Discard removes what was written, the manifest first if there is one, and the folder if
// it was not there before. Nobody may be writing any more.
func (f *Folder) Discard() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return errors.Join(fmt.Errorf("remove what was written: %w", err), f.lock.Close())
	}
	var errs []error
	remove := func(name string) {
		if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("remove what was written: %w", err))
		}
	}
	for _, entry := range entries { // without it nobody takes the rest for whole
		if entry.Name() == manifestName {
			remove(manifestName)
		}
	}
	for _, entry := range entries {
		if name := entry.Name(); name == manifestName+temporary || tableFile.MatchString(name) {
			remove(name)
		}
	}
	if len(errs) == 0 {
		remove(inProgress) // last: what it marks is gone
	}
	if f.made {
		_ = os.Remove(f.dir) // if it is empty
	}
	return errors.Join(append(errs, f.lock.Close())...)
}
