/* The zygote's loop: take an order, fork a child for it, watch the child, report how it ended.
 *
 * An order is numbers and descriptors. The program, its inputs and what it prints stay in files of
 * memory that only the child and the trusted side read: what the zygote never had, no later child
 * can find in the memory that it inherits.
 *
 * It does what `Supervisor` in fugu/sandbox/guest/serve.py does, which is its reference.
 * Between two forks an interpreter writes to hundreds of pages that parent and child share, and
 * each of them is then copied; this loop writes to a handful.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TICK 0.002          /* seconds between looks at a clock that is about to run out */
#define BROKEN 70           /* the status of a child that could not run its program */
#define SOME_PID 0x5EC0D00D /* stands for the child's id in the filter */
#define MOST_RULES 2048
#define MOST_OPEN 1024
#define LINE 3 /* the descriptor that a child talks through */

enum { TALK, OUT, ERR, DESCRIPTORS }; /* of an order */
enum { NOT_KILLED, BY_WALL, BY_CPU, ASKED, GONE };

typedef struct {
    double cpu, wall; /* seconds */
    uint64_t memory, file_bytes, output;
} Order;

typedef struct {
    int32_t status, killed;
    double cpu;
    uint64_t memory, left;
} Report;

typedef struct {
    int control;
    unsigned cores;
    uint64_t space; /* bytes of address space that the zygote itself has */
    uint64_t rules;
    struct sock_filter lock[MOST_RULES];
} Zygote;

size_t fugu_zygote_bytes(void) {
    return sizeof(Zygote);
}

void fugu_zygote_begin(Zygote* zygote, int control, unsigned cores, uint64_t space,
                       const void* lock, size_t lock_bytes) {
    zygote->control = control;
    zygote->cores = cores;
    zygote->space = space;
    zygote->rules = lock_bytes / sizeof(struct sock_filter);
    if (zygote->rules > MOST_RULES)
        _exit(BROKEN);
    memcpy(zygote->lock, lock, lock_bytes);
}

static double now(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time))
        return 0.0; /* the clock of a child that has just ended */
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---------------------------------------------------------------- the child */

static void bound(unsigned kind, uint64_t most) {
    struct rlimit limit = {most, most};
    setrlimit(kind, &limit); /* fails where it is lower already */
}

static void shut_in(Zygote* zygote, const Order* order) {
    bound(RLIMIT_CPU, (uint64_t)ceil(order->cpu) + 1);
    bound(RLIMIT_AS, zygote->space + order->memory);
    bound(RLIMIT_FSIZE, order->file_bytes);
    if (!zygote->rules)
        return;
    for (uint64_t i = 0; i < zygote->rules; i++)
        if (zygote->lock[i].k == SOME_PID)
            zygote->lock[i].k = (uint32_t)getpid();
    struct sock_fprog program = {(unsigned short)zygote->rules, zygote->lock};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        _exit(BROKEN);
}

static void become(Zygote* zygote, const Order* order, const int* descriptors) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    int in = memfd_create("in", 0);
    if (in < 0 || dup2(descriptors[OUT], 1) < 0 || dup2(descriptors[ERR], 2) < 0 ||
        dup2(in, 0) < 0 || dup2(descriptors[TALK], LINE) < 0)
        _exit(BROKEN);
    if (syscall(SYS_close_range, LINE + 1, ~0U, 0)) /* a kernel before 5.9 */
        for (int other = LINE + 1; other < MOST_OPEN; other++)
            close(other);
    shut_in(zygote, order);
}

/* ---------------------------------------------------------------- the zygote */

/* The next order; 1 if there is one, 0 if this message is none, -1 once nobody orders. */
static int take_order(const Zygote* zygote, Order* order, int* descriptors) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    } control = {{0}};
    struct iovec piece = {order, sizeof *order};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control};
    ssize_t size;
    do {
        size = recvmsg(zygote->control, &message, MSG_CMSG_CLOEXEC);
    } while (size < 0 && errno == EINTR);
    if (size <= 0)
        return -1;
    struct cmsghdr* found = CMSG_FIRSTHDR(&message);
    if (size != sizeof *order || !found || found->cmsg_type != SCM_RIGHTS ||
        found->cmsg_len != CMSG_LEN(DESCRIPTORS * sizeof(int)))
        return 0; /* a stop that came too late */
    memcpy(descriptors, CMSG_DATA(found), DESCRIPTORS * sizeof(int));
    return 1;
}

static int has_ended(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid == pid;
}

/* Wait for the child's end, or bring it about; says why it was killed, if it was. */
static int watch(const Zygote* zygote, pid_t pid, const Order* order) {
    int child = (int)syscall(SYS_pidfd_open, pid, 0), killed = NOT_KILLED;
    double deadline = now(CLOCK_MONOTONIC) + order->wall, cpu_left = order->cpu;
    while (!killed) {
        double pause = fmin(deadline - now(CLOCK_MONOTONIC), cpu_left / zygote->cores);
        pause = child < 0 ? TICK : fmin(fmax(pause, TICK), 1e5);
        struct pollfd looks[2] = {{zygote->control, POLLIN, 0}, {child, POLLIN, 0}};
        int found = poll(looks, child < 0 ? 1 : 2, (int)ceil(1e3 * pause));
        if (child < 0 ? has_ended(pid) : found > 0 && looks[1].revents)
            break;
        char word;
        if (found > 0 && looks[0].revents) /* only ever to stop */
            killed = recv(zygote->control, &word, 1, 0) > 0 ? ASKED : GONE;
        else if (now(CLOCK_MONOTONIC) >= deadline)
            killed = BY_WALL;
        else if ((cpu_left = order->cpu - now((clockid_t)((~(unsigned)pid << 3) | 2))) <= 0)
            killed = BY_CPU;
    }
    if (killed)
        kill(pid, SIGKILL);
    if (child >= 0)
        close(child);
    return killed;
}

static double seconds(struct timeval time) {
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

/* Serve orders. Returns 1 in each child, and 0 in the zygote once nobody orders. */
int fugu_zygote_serve(Zygote* zygote) {
    for (;;) {
        Order order;
        int descriptors[DESCRIPTORS], taken = take_order(zygote, &order, descriptors);
        if (taken < 0)
            return 0;
        if (!taken)
            continue;
        pid_t pid = fork();
        if (pid < 0)
            return 0; /* whoever waits sees it end, and starts another */
        if (pid == 0) {
            become(zygote, &order, descriptors);
            return 1;
        }
        for (int i = 0; i < DESCRIPTORS; i++)
            close(descriptors[i]);
        Report report = {.killed = watch(zygote, pid, &order)};
        struct rusage usage;
        while (wait4(pid, &report.status, 0, &usage) < 0 && errno == EINTR)
            continue;
        report.cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        report.memory = (uint64_t)usage.ru_maxrss * 1024;
        int lost = report.killed == GONE ||
                   send(zygote->control, &report, sizeof report, MSG_NOSIGNAL) < 0;
        explicit_bzero(&report, sizeof report); /* the next child inherits this stack */
        explicit_bzero(&usage, sizeof usage);
        if (lost)
            return 0;
    }
}
