// Package nearest finds the valid word that a misspelt one was meant to be.
package nearest

import "strings"

// To returns the word of valid that is nearest to word: by edit distance,
// where a common beginning wins a tie. It returns "" only when valid is empty.
func To(word string, valid []string) string {
	best, least := "", -1
	lower := strings.ToLower(word)
	for _, v := range valid {
		candidate := strings.ToLower(v)
		d := 2 * distance(lower, candidate)
		if lower != "" && strings.Contains(candidate, lower) {
			d = 1 // an abbreviation is nearer than any misspelling but none
		}
		if strings.HasPrefix(candidate, firstRune(lower)) {
			d--
		}
		if least < 0 || d < least {
			best, least = v, d
		}
	}
	return best
}

func firstRune(s string) string {
	for _, r := range s {
		return string(r)
	}
	return "\x00"
}

// distance is that of Levenshtein, over bytes, of at most maxWord of each.
func distance(a, b string) int {
	const maxWord = 64
	a, b = a[:min(len(a), maxWord)], b[:min(len(b), maxWord)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			last, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, last+cost)
		}
	}
	return row[len(b)]
}
