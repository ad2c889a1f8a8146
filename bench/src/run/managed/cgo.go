// With this file the program is linked with libc, and its heap is mapped by libc's mmap.
package main

import "C"
