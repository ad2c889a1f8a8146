// The iterator over real std::map nodes, on this machine: an iterator is an ordinary function there. What lower_bound finds is what the
// traversal finds, for maps of every size up to 300. Ends with 0, or says where they differ.
#include "../map_lower_bound.cpp"

#include <cstdio>
#include <cstring>
#include <map>

static uint64_t address(const void *node) {
    return reinterpret_cast<uintptr_t>(node);
}

// Runs it as a memory node does: loads a copy of the node, then the body.
static scratch traverse(uint64_t root, uint64_t wanted) {
    scratch sp = {wanted, 0, 0, 0};
    for (uint64_t at = root; at != 0;) {
        node window;
        std::memcpy(&window, reinterpret_cast<const void *>(at), sizeof window);
        at = map_lower_bound(&window, &sp, at);
    }
    return sp;
}

int main() {
    static_assert(sizeof(node) == sizeof(std::_Rb_tree_node<std::pair<const uint64_t, uint64_t>>), "libstdc++'s layout");
    std::map<uint64_t, uint64_t> map;
    uint64_t random = 1;
    for (int size = 0; size < 300; size++) {
        const auto *header = map.end()._M_node;
        const uint64_t root = address(header->_M_parent);
        for (uint64_t wanted = 0; wanted < 1030; wanted += 3) {
            const auto expected = map.lower_bound(wanted);
            const scratch found = traverse(root, wanted);
            const bool same = expected == map.end()
                ? found.node == 0
                : found.node == address(expected._M_node) && found.key == expected->first && found.value == expected->second;
            if (!same) {
                std::printf("%d entries, lower_bound(%llu) differs\n", size, static_cast<unsigned long long>(wanted));
                return 1;
            }
        }
        random = random * 6364136223846793005 + 1442695040888963407;
        map.emplace(random >> 54, random);
    }
    return 0;
}
