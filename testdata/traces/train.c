/* One layer of a network trained by workers that share its weights, as TensorFlow's do (MIND 7.1): each reads all weights, works on examples
 * of its own, keeps its gradients to itself, and at the end of a step sums its part of all gradients up into the weights.
 *
 *     train WORKERS INPUTS OUTPUTS STEPS
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 4 };

static uint32_t workers, inputs, outputs, steps;
static float *weights, **gradients, **examples;
static pthread_barrier_t barrier;

static void *work(void *number) {
    uint32_t me = (uint32_t)(uintptr_t)number;
    float *gradient = gradients[me], *example = examples[me], result[64];
    uint32_t size = inputs * outputs;
    uint32_t from = (uint64_t)size * me / workers, to = (uint64_t)size * (me + 1) / workers;
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t b = 0; b < BATCH; b++) {
            float *x = example + b * inputs;
            for (uint32_t o = 0; o < outputs; o++) {
                float sum = 0;
                for (uint32_t i = 0; i < inputs; i++) sum += weights[o * inputs + i] * x[i];
                result[o] = sum > 0 ? sum - (float)(o == me % outputs) : 0;
            }
            for (uint32_t o = 0; o < outputs; o++)
                for (uint32_t i = 0; i < inputs; i++) gradient[o * inputs + i] += result[o] * x[i];
        }
        pthread_barrier_wait(&barrier);
        for (uint32_t w = 0; w < workers; w++)
            for (uint32_t k = from; k < to; k++) weights[k] -= 0.001f * gradients[w][k];
        pthread_barrier_wait(&barrier);
        for (uint32_t k = 0; k < size; k++) gradient[k] = 0;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    workers = atoi(argv[1]), inputs = atoi(argv[2]), outputs = atoi(argv[3]), steps = atoi(argv[4]);
    if (outputs > 64) return 2;
    weights = malloc(sizeof *weights * inputs * outputs);
    gradients = malloc(sizeof *gradients * workers);
    examples = malloc(sizeof *examples * workers);
    pthread_t *threads = malloc(workers * sizeof *threads);
    if (!weights || !gradients || !examples || !threads) return 1;
    for (uint32_t k = 0; k < inputs * outputs; k++) weights[k] = (float)(k * 2654435761u % 1000) / 1000 - 0.5f;
    for (uint32_t w = 0; w < workers; w++) {
        gradients[w] = calloc(inputs * outputs, sizeof(float));
        examples[w] = malloc(sizeof(float) * BATCH * inputs);
        if (!gradients[w] || !examples[w]) return 1;
        for (uint32_t i = 0; i < BATCH * inputs; i++) examples[w][i] = (float)((i ^ w) % 16) / 16;
    }
    pthread_barrier_init(&barrier, NULL, workers);
    for (uint32_t n = 0; n < workers; n++)
        if (pthread_create(&threads[n], NULL, work, (void *)(uintptr_t)n)) return 1;
    for (uint32_t n = 0; n < workers; n++) pthread_join(threads[n], NULL);
    double sum = 0;
    for (uint32_t k = 0; k < inputs * outputs; k++) sum += weights[k];
    printf("weights sum up to %.3f\n", sum);
    return 0;
}
