/* Memory of known bytes, for the programs that are linked statically. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void fill(unsigned char *at, size_t len, unsigned seed) {
    for (size_t i = 0; i < len; i += 64) memcpy(at + i, &(uint64_t){ seed + i }, 8);
}

static size_t wrong(const unsigned char *at, size_t len, unsigned seed) {
    size_t count = 0;
    for (size_t i = 0; i < len; i += 64) count += memcmp(at + i, &(uint64_t){ seed + i }, 8) != 0;
    return count;
}

static unsigned char *map(size_t len) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
