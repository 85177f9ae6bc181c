package pgtext

import (
	"bytes"
	"strconv"
)

const (
	secondsPerDay  = 24 * 60 * 60
	microsPerDay   = secondsPerDay * 1_000_000
	millisPerDay   = secondsPerDay * 1000
	microsPerMilli = 1000

	// maxYearDigits bounds years: dates end in 5874897.
	maxYearDigits = 7
)

func (o Options) appendDate(dst, text []byte) ([]byte, bool) {
	if isInfinite(text) {
		return o.appendNonFinite(dst, text), true
	}
	body, bc := cutBC(text)
	days, rest, ok := cutDate(body, bc)
	if !ok || len(rest) > 0 {
		return append(dst, null...), false
	}
	return strconv.AppendInt(dst, days*millisPerDay, 10), true
}

func (o Options) appendTimestamp(dst, text []byte) ([]byte, bool) {
	if isInfinite(text) {
		return o.appendNonFinite(dst, text), true
	}
	body, bc := cutBC(text)
	days, rest, ok := cutDate(body, bc)
	if !ok || len(rest) == 0 || rest[0] != ' ' {
		return append(dst, null...), false
	}
	micros, rest, ok := cutClock(rest[1:])
	if !ok {
		return append(dst, null...), false
	}
	if len(rest) > 0 {
		var offset int64
		if offset, rest, ok = cutOffset(rest); !ok || len(rest) > 0 {
			return append(dst, null...), false
		}
		micros -= offset * 1_000_000
	}
	// Microseconds since 1970 of the last year do not fit 64 bits: milliseconds apart.
	millis := floorDiv(micros, microsPerMilli)
	return appendMillis(dst, days*millisPerDay+millis, micros-millis*microsPerMilli), true
}

func appendTime(dst, text []byte) ([]byte, bool) {
	micros, rest, ok := cutClock(text)
	if !ok || len(rest) > 0 {
		return dst, false
	}
	return strconv.AppendInt(dst, micros/microsPerMilli, 10), true
}

func appendTimeTZ(dst, text []byte) ([]byte, bool) {
	micros, rest, ok := cutClock(text)
	if !ok {
		return dst, false
	}
	offset, rest, ok := cutOffset(rest)
	if !ok || len(rest) > 0 {
		return dst, false
	}
	// 24:00:00 in UTC is the end of the day, not its start.
	if micros -= offset * 1_000_000; micros < 0 || micros > microsPerDay || micros == microsPerDay && offset != 0 {
		micros -= floorDiv(micros, microsPerDay) * microsPerDay
	}
	return strconv.AppendInt(dst, micros/microsPerMilli, 10), true
}

// appendMillis appends millis + micros/1000; micros are from 0 to 999.
func appendMillis(dst []byte, millis, micros int64) []byte {
	if micros == 0 {
		return strconv.AppendInt(dst, millis, 10)
	}
	if millis < 0 {
		dst = append(dst, '-')
		millis, micros = -millis-1, microsPerMilli-micros
	}
	dst = strconv.AppendInt(dst, millis, 10)
	dst = append(dst, '.', byte('0'+micros/100), byte('0'+micros/10%10), byte('0'+micros%10))
	for dst[len(dst)-1] == '0' {
		dst = dst[:len(dst)-1]
	}
	return dst
}

// cutBC takes the mark of years before 1 AD from the end.
func cutBC(text []byte) (rest []byte, bc bool) {
	if len(text) > 3 && string(text[len(text)-3:]) == " BC" {
		return text[:len(text)-3], true
	}
	return text, false
}

func isInfinite(text []byte) bool {
	return string(text) == "infinity" || string(text) == "-infinity"
}

// cutDate reads a date YYYY-MM-DD, years of four digits or more, and returns its
// distance from 1970-01-01 in days.
func cutDate(text []byte, bc bool) (days int64, rest []byte, ok bool) {
	i := bytes.IndexByte(text, '-')
	if i < 4 || i > maxYearDigits || len(text) < i+6 || text[i+3] != '-' {
		return 0, nil, false
	}
	year := int64(0)
	for _, c := range text[:i] {
		if !isDigit(c) {
			return 0, nil, false
		}
		year = year*10 + int64(c-'0')
	}
	month, ok1 := twoDigits(text[i+1:])
	day, ok2 := twoDigits(text[i+4:])
	if !ok1 || !ok2 || year == 0 || month < 1 || month > 12 || day < 1 {
		return 0, nil, false
	}
	if bc {
		year = 1 - year // there is no year 0: 1 BC is the one before 1 AD
	}
	if day > daysIn(year, month) {
		return 0, nil, false
	}
	return daysFrom1970(year, month, day), text[i+6:], true
}

func daysIn(year, month int64) int64 {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	default:
		return 31
	}
}

// daysFrom1970 counts days in the proleptic Gregorian calendar. Years are counted from
// March, so that the leap day is a year's last, and in eras of 400 years.
func daysFrom1970(year, month, day int64) int64 {
	const daysPerEra, daysToEpoch = 146_097, 719_468
	if month <= 2 {
		year--
		month += 12
	}
	era := floorDiv(year, 400)
	yearOfEra := year - era*400
	dayOfYear := (153*(month-3)+2)/5 + day - 1
	return era*daysPerEra + yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear - daysToEpoch
}

// cutClock reads HH:MM:SS with up to six digits of fraction, in microseconds.
func cutClock(text []byte) (micros int64, rest []byte, ok bool) {
	if len(text) < 8 || text[2] != ':' || text[5] != ':' {
		return 0, nil, false
	}
	hours, ok1 := twoDigits(text)
	minutes, ok2 := twoDigits(text[3:])
	seconds, ok3 := twoDigits(text[6:])
	if !ok1 || !ok2 || !ok3 || hours > 24 || minutes > 59 || seconds > 59 {
		return 0, nil, false
	}
	micros = ((hours*60+minutes)*60 + seconds) * 1_000_000
	rest = text[8:]
	if len(rest) > 0 && rest[0] == '.' {
		i := 1
		for unit := int64(100_000); i < len(rest) && isDigit(rest[i]); unit /= 10 {
			micros += int64(rest[i]-'0') * unit
			i++
		}
		if i == 1 || i > 7 {
			return 0, nil, false
		}
		rest = rest[i:]
	}
	return micros, rest, micros <= microsPerDay
}

// cutOffset reads a zone's offset ±HH[:MM[:SS]], in seconds east of UTC.
func cutOffset(text []byte) (seconds int64, rest []byte, ok bool) {
	if len(text) < 3 || text[0] != '+' && text[0] != '-' {
		return 0, nil, false
	}
	hours, ok := twoDigits(text[1:])
	if !ok {
		return 0, nil, false
	}
	seconds = hours * 60 * 60
	rest = text[3:]
	for unit := int64(60); unit > 0 && len(rest) > 0 && rest[0] == ':'; unit /= 60 {
		part, ok := twoDigits(rest[1:])
		if !ok || part > 59 {
			return 0, nil, false
		}
		seconds += part * unit
		rest = rest[3:]
	}
	if text[0] == '-' {
		seconds = -seconds
	}
	return seconds, rest, true
}

func twoDigits(text []byte) (int64, bool) {
	if len(text) < 2 || !isDigit(text[0]) || !isDigit(text[1]) {
		return 0, false
	}
	return int64(text[0]-'0')*10 + int64(text[1]-'0'), true
}

// floorDiv divides and rounds down; b is positive.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
