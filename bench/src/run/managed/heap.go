// Fills a heap with blocks, reads them in order, and replaces some. Prints the nanoseconds and a number that is the same in every language.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"time"
)

const words = 128

func block(n uint64) *[words]uint64 {
	made := new([words]uint64)
	for i := range made {
		made[i] = n*31 + uint64(i)
	}
	return made
}

func main() {
	bytes, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		panic(err)
	}
	count := bytes / (8 * words)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		panic(err)
	}
	begin := time.Now()
	blocks := make([]*[words]uint64, count)
	for n := range blocks {
		blocks[n] = block(uint64(n))
	}
	var sum uint64
	for round := uint64(0); round < 2; round++ {
		for n := range blocks {
			sum += blocks[n][(uint64(n)+round)%words]
		}
	}
	state := uint64(1)
	for step := uint64(0); step < 20_000; step++ {
		state = state*6364136223846793005 + 1442695040888963407
		n := (state >> 33) % count
		blocks[n] = block(blocks[n][5] + step)
		sum = sum*31 + blocks[n][7]
	}
	fmt.Println(time.Since(begin).Nanoseconds(), sum)
}
