/* What sending one token costs before any server: CPU time of send() on a TCP socket of this machine, to a
 * process that does nothing but read. The kernel does the receiving side's work, and wakes the reader, within
 * the sender's call, so no server that sends tokens one by one costs less. One JSON object.
 *
 *   bench_send_floor [SENDS] [BYTES] [MB]
 *
 * MB of memory are read between two sends, as a model's weights are, so that nothing is left in caches;
 * 0: it sleeps instead. `wake` is what waking a second thread by an eventfd costs the one that wakes it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* A connection to ourselves; *other: its other end. */
static int connect_pair(int *other) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t k = sizeof a;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), s = -1;
    *other = socket(AF_INET, SOCK_STREAM, 0);
    if (listener >= 0 && *other >= 0 && bind(listener, (struct sockaddr *)&a, k) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&a, &k) == 0 &&
        connect(*other, (struct sockaddr *)&a, k) == 0)
        s = accept(listener, NULL, NULL);
    if (s >= 0) setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (listener >= 0) close(listener);
    return s;
}

static void *sleeper(void *fd) {
    uint64_t n;
    while (read(*(int *)fd, &n, sizeof n) == sizeof n && n < 1000) {}
    return NULL;
}

static long sweep(const char *memory, size_t bytes) {
    long sum = 0;
    for (size_t i = 0; i < bytes; i += 64) sum += memory[i];
    if (bytes == 0) usleep(5000);
    return sum;
}

int main(int argc, char **argv) {
    int sends = argc > 1 ? atoi(argv[1]) : 256;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 250,
           memory_bytes = (argc > 3 ? (size_t)atol(argv[3]) : 90) << 20;
    int other, to = connect_pair(&other), wake = eventfd(0, 0);
    char *memory = malloc(memory_bytes + 1), *data = malloc(bytes + 1);
    if (sends < 1 || to < 0 || wake < 0 || !memory || !data) return 1;
    memset(memory, 1, memory_bytes + 1);
    memset(data, 'x', bytes + 1);
    pid_t reader = fork();
    if (reader == 0) {
        char in[65536];
        close(to);
        while (read(other, in, sizeof in) > 0) {}
        _exit(0);
    }
    close(other);
    double sending = 0, waking = 0;
    long sum = 0;
    for (int i = 0; i < sends; i++) {
        sum += sweep(memory, memory_bytes);
        double began = cpu_us();
        if (send(to, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes) return 1;
        sending += cpu_us() - began;
    }
    close(to);
    waitpid(reader, NULL, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeper, &wake) != 0) return 1;
    for (int i = 0; i <= sends; i++) {
        uint64_t one = i < sends ? 1 : 1000;
        sum += sweep(memory, memory_bytes);
        double began = cpu_us();
        if (write(wake, &one, sizeof one) != sizeof one) return 1;
        if (i < sends) waking += cpu_us() - began;
    }
    pthread_join(thread, NULL);
    printf(
        "{\"sends\":%d,\"bytes\":%zu,\"swept_mb\":%zu,\"send_us\":%.2f,\"wake_us\":%.2f,\"sum\":%ld}\n",
        sends, bytes, memory_bytes >> 20, sending / sends, waking / sends, sum);
    free(memory);
    free(data);
    return 0;
}
