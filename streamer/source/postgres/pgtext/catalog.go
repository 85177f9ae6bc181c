package pgtext

// oids of the two types that are in the array category but print no array.
const (
	int2vector = 22
	oidvector  = 30
)

const comma = ','

// CatalogType is what pg_type says about a type.
type CatalogType struct {
	OID      uint32
	Name     string // typname
	Type     byte   // typtype
	Category byte   // typcategory
	Len      int16  // typlen
	Delim    byte   // typdelim
	// Elem is the row that typelem points to, and must be given for arrays.
	Elem *CatalogType
	// Base is typbasetype. A domain is sent as text whatever it is based on.
	Base uint32
}

// builtin is a type that has the same OID in every database, and its array. Names are
// for readers.
type builtin struct {
	name       string
	oid, array uint32
	kind       Kind
}

var builtins = []builtin{
	{"bool", 16, 1000, Bool},
	{"bytea", 17, 1001, Bytea},
	{"int8", 20, 1016, Int},
	{"int2", 21, 1005, Int},
	{"int4", 23, 1007, Int},
	{"oid", 26, 1028, Int},
	{"json", 114, 199, JSON},
	{"jsonb", 3802, 3807, JSON},
	{"float4", 700, 1021, Float},
	{"float8", 701, 1022, Float},
	{"numeric", 1700, 1231, Numeric},
	{"date", 1082, 1182, Date},
	{"time", 1083, 1183, Time},
	{"timetz", 1266, 1270, TimeTZ},
	{"timestamp", 1114, 1115, Timestamp},
	{"timestamptz", 1184, 1185, Timestamp},
	{"text", 25, 1009, Text},
	{"varchar", 1043, 1015, Text},
	{"bpchar", 1042, 1014, Text},
	{"char", 18, 1002, Text},
	{"name", 19, 1003, Text},
	{"uuid", 2950, 2951, Text},
	{"xml", 142, 143, Text},
	{"interval", 1186, 1187, Text},
	{"money", 790, 791, Text},
	{"bit", 1560, 1561, Text},
	{"varbit", 1562, 1563, Text},
	{"inet", 869, 1041, Text},
	{"cidr", 650, 651, Text},
	{"macaddr", 829, 1040, Text},
	{"macaddr8", 774, 775, Text},
	{"point", 600, 1017, Text},
	{"lseg", 601, 1018, Text},
	{"path", 602, 1019, Text},
	{"box", 603, 1020, Text},
	{"polygon", 604, 1027, Text},
	{"line", 628, 629, Text},
	{"circle", 718, 719, Text},
	{"int4range", 3904, 3905, Text},
	{"numrange", 3906, 3907, Text},
	{"tsrange", 3908, 3909, Text},
	{"tstzrange", 3910, 3911, Text},
	{"daterange", 3912, 3913, Text},
	{"int8range", 3926, 3927, Text},
	{"int4multirange", 4451, 6150, Text},
	{"nummultirange", 4532, 6151, Text},
	{"tsmultirange", 4533, 6152, Text},
	{"tstzmultirange", 4534, 6153, Text},
	{"datemultirange", 4535, 6155, Text},
	{"int8multirange", 4536, 6157, Text},
	{"tsvector", 3614, 3643, Text},
	{"tsquery", 3615, 3645, Text},
	{"gtsvector", 3642, 3644, Text},
	{"jsonpath", 4072, 4073, Text},
	{"pg_lsn", 3220, 3221, Text},
	{"tid", 27, 1010, Text},
	{"xid", 28, 1011, Text},
	{"xid8", 5069, 271, Text},
	{"cid", 29, 1012, Text},
	{"pg_snapshot", 5038, 5039, Text},
	{"txid_snapshot", 2970, 2949, Text},
	{"int2vector", int2vector, 1006, Text},
	{"oidvector", oidvector, 1013, Text},
	{"aclitem", 1033, 1034, Text},
	{"refcursor", 1790, 2201, Text},
	{"regproc", 24, 1008, Text},
	{"regprocedure", 2202, 2207, Text},
	{"regoper", 2203, 2208, Text},
	{"regoperator", 2204, 2209, Text},
	{"regclass", 2205, 2210, Text},
	{"regtype", 2206, 2211, Text},
	{"regconfig", 3734, 3735, Text},
	{"regdictionary", 3769, 3770, Text},
	{"regnamespace", 4089, 4090, Text},
	{"regrole", 4096, 4097, Text},
	{"regcollation", 4191, 4192, Text},
}

var builtinTypes = func() map[uint32]Type {
	types := make(map[uint32]Type, 2*len(builtins))
	for _, b := range builtins {
		elem := Type{OID: b.oid, Kind: b.kind}
		delim := byte(comma)
		if b.name == "box" {
			delim = ';'
		}
		types[b.oid] = elem
		types[b.array] = Type{OID: b.array, Kind: Array, Elem: &elem, Delim: delim}
	}
	return types
}()

// Builtin returns the type of an OID that is the same in every database.
func Builtin(oid uint32) (Type, bool) {
	t, ok := builtinTypes[oid]
	return t, ok
}

// FromCatalog returns the type that a row of pg_type describes. What is neither built in
// nor an array is text: domains, enums, composites, ranges, types of extensions.
func FromCatalog(row CatalogType) Type {
	if t, ok := Builtin(row.OID); ok {
		return t
	}
	if row.Type == 'd' || row.Category != 'A' || row.Len != -1 || row.Elem == nil {
		return Type{OID: row.OID}
	}
	elem := FromCatalog(*row.Elem)
	if elem.Kind == Array {
		elem = Type{OID: elem.OID} // Postgres has no such type
	}
	t := Type{OID: row.OID, Kind: Array, Elem: &elem, Delim: row.Elem.Delim}
	if t.Delim == 0 {
		t.Delim = comma
	}
	return t
}
