// A heap of blocks and of lists that many goroutines change, with a collector that runs often.
// The answer depends on the arguments alone: mebibytes and goroutines.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

const blockWords = 8192

type node struct {
	next  *node
	value uint64
}

func random(state *uint64) uint64 {
	*state ^= *state << 13
	*state ^= *state >> 7
	*state ^= *state << 17
	return *state
}

func fill(block []uint64, seed uint64) {
	for at := range block {
		block[at] = seed + uint64(at)
	}
}

func work(number uint64, blocks int) uint64 {
	state := number*0x9e3779b97f4a7c15 + 1
	seeds := make([]uint64, blocks)
	all := make([][]uint64, blocks)
	var list *node
	for at := range all {
		seeds[at] = random(&state)
		all[at] = make([]uint64, blockWords)
		fill(all[at], seeds[at])
		list = &node{list, seeds[at]}
	}
	for change := 0; change < blocks/2; change++ {
		at := int(random(&state) % uint64(blocks))
		seeds[at] = random(&state)
		all[at] = make([]uint64, blockWords)
		fill(all[at], seeds[at])
	}
	sum := uint64(0)
	for at, block := range all {
		for word, value := range block {
			if value != seeds[at]+uint64(word) {
				fmt.Printf("goroutine %d: word %d of block %d is %x\n", number, word, at, value)
				os.Exit(1)
			}
			sum = sum*31 + value
		}
	}
	for ; list != nil; list = list.next {
		sum = sum*31 + list.value
	}
	return sum
}

func main() {
	size, _ := strconv.Atoi(os.Args[1])
	count, _ := strconv.Atoi(os.Args[2])
	sums := make([]uint64, count)
	var group sync.WaitGroup
	for number := range sums {
		group.Add(1)
		go func() {
			defer group.Done()
			sums[number] = work(uint64(number), size<<20/(blockWords*8)/count)
		}()
	}
	group.Wait()
	fmt.Println(sums)
}
