/** Fills a heap with blocks, reads them in order, and replaces some. Prints the nanoseconds and a number that is the same in every language. */
final class Heap {
    private static final int WORDS = 128;

    private static long[] block(long n) {
        long[] words = new long[WORDS];
        for (int i = 0; i < WORDS; i++) words[i] = n * 31 + i;
        return words;
    }

    public static void main(String[] arguments) throws Exception {
        int count = (int) (Long.parseLong(arguments[0]) / (8 * WORDS));
        new java.io.BufferedReader(new java.io.InputStreamReader(System.in)).readLine();
        long begin = System.nanoTime();
        long[][] blocks = new long[count][];
        for (int n = 0; n < count; n++) blocks[n] = block(n);
        long sum = 0;
        for (int round = 0; round < 2; round++) {
            for (int n = 0; n < count; n++) sum += blocks[n][(n + round) % WORDS];
        }
        long state = 1;
        for (int step = 0; step < 20_000; step++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int n = (int) ((state >>> 33) % count);
            blocks[n] = block(blocks[n][5] + step);
            sum = sum * 31 + blocks[n][7];
        }
        System.out.println((System.nanoTime() - begin) + " " + Long.toUnsignedString(sum));
    }
}
