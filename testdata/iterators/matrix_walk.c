// Matrices in a list: what is above and below their diagonals. Loops in loops, with branches on how far they are.
#include <farmem/iterator.h>

#define ROWS 6

struct node {
    struct node *next;
    uint16_t cell[ROWS][ROWS];
};

struct scratch {
    uint32_t above, below, diagonal, heaviest;
};

FARMEM_ITERATOR(matrix_walk, struct node, struct scratch) {
    FARMEM_UNROLL
    for (int row = 0; row < ROWS; row++) {
        uint32_t sum = 0;
        FARMEM_UNROLL
        for (int column = 0; column < ROWS; column++) {
            uint32_t cell = win->cell[row][column];
            sum += cell;
            if (column > row)
                sp->above += cell;
            else if (column < row)
                sp->below += cell;
            else
                sp->diagonal += cell;
        }
        if (sum > sp->heaviest)
            sp->heaviest = sum;
    }
    return FARMEM_NEXT(win->next);
}
