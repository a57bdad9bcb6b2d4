/* The zygote's loop: take an order, fork a child for it, watch the child, report how it ended.
 *
 * It does what `Supervisor` in fugu/sandbox/guest/supervisor.py does, which is its reference.
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
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOLD (1 << 16)      /* bytes of a captured stream in a report */
#define TICK 0.002          /* seconds between looks at a clock that is about to run out */
#define BROKEN 70           /* the status of a child that could not run its program */
#define SOME_PID 0x5EC0D00D /* stands for the child's id in the filter */
#define MOST_RULES 2048
#define MOST_OPEN 1024
#define LINE 3 /* the descriptor that a child talks through */

enum { NOT_KILLED, BY_WALL, BY_CPU, ASKED, GONE };

typedef struct {
    double cpu, wall; /* seconds */
    uint64_t memory, file_bytes, output;
    uint64_t batch; /* whether the request comes with the order */
} Order;

typedef struct {
    int32_t status, killed;
    double cpu;
    uint64_t memory, printed;
    uint32_t out, err;
    uint64_t left;
} Report;

typedef struct {
    int control;
    unsigned cores;
    uint64_t space; /* bytes of address space that the zygote itself has */
    uint64_t rules;
    struct sock_filter lock[MOST_RULES];
    uint64_t room;
    unsigned char buffer[]; /* an order and its request; a report's texts */
} Zygote;

typedef char buffer_is_last[sizeof(Zygote) == offsetof(Zygote, buffer) ? 1 : -1];

size_t fugu_zygote_bytes(size_t room) {
    return sizeof(Zygote) + room;
}

void fugu_zygote_begin(Zygote* zygote, int control, unsigned cores, uint64_t space,
                       const void* lock, size_t lock_bytes, size_t room) {
    zygote->control = control;
    zygote->cores = cores;
    zygote->space = space;
    zygote->rules = lock_bytes / sizeof(struct sock_filter);
    zygote->room = room;
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

static void become(Zygote* zygote, const Order* order, int line, const int* streams) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    int in = memfd_create("in", 0);
    if (in < 0 || dup2(streams[0], 1) < 0 || dup2(streams[1], 2) < 0 || dup2(in, 0) < 0 ||
        dup2(line, LINE) < 0)
        _exit(BROKEN);
    if (syscall(SYS_close_range, LINE + 1, ~0U, 0)) /* a kernel before 5.9 */
        for (int other = LINE + 1; other < MOST_OPEN; other++)
            close(other);
    shut_in(zygote, order);
}

/* ---------------------------------------------------------------- the zygote */

static ssize_t take_order(Zygote* zygote, int* line) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec piece = {zygote->buffer, zygote->room};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control};
    ssize_t size;
    do {
        size = recvmsg(zygote->control, &message, MSG_CMSG_CLOEXEC);
    } while (size < 0 && errno == EINTR);
    *line = -1;
    struct cmsghdr* found = CMSG_FIRSTHDR(&message);
    if (found && found->cmsg_type == SCM_RIGHTS)
        memcpy(line, CMSG_DATA(found), sizeof(int));
    return size;
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

static uint32_t told(int stream, uint64_t most, unsigned char* into, uint64_t* printed) {
    struct stat state;
    if (fstat(stream, &state))
        return 0;
    if ((uint64_t)state.st_size > *printed)
        *printed = (uint64_t)state.st_size;
    ssize_t size = state.st_size ? pread(stream, into, most < TOLD ? most : TOLD, 0) : 0;
    return size > 0 ? (uint32_t)size : 0;
}

static double seconds(struct timeval time) {
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

static int tell(Zygote* zygote, const Order* order, const int* streams, Report* report) {
    report->out = told(streams[0], order->output, zygote->buffer, &report->printed);
    unsigned char* rest = zygote->buffer + report->out;
    report->err = told(streams[1], order->output, rest, &report->printed);
    struct iovec pieces[2] = {{report, sizeof *report},
                              {zygote->buffer, (size_t)report->out + report->err}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    return sendmsg(zygote->control, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

/* Serve orders. Returns in each child the bytes of the request that came with its order and stands
 * in the buffer, 0 if it is to be read from the line; and in the zygote -1 once nobody orders. */
ssize_t fugu_zygote_serve(Zygote* zygote) {
    for (;;) {
        int line;
        ssize_t size = take_order(zygote, &line);
        if (size <= 0)
            return -1;
        if (line < 0 || (size_t)size < sizeof(Order))
            continue; /* a stop that came too late */
        Order order;
        memcpy(&order, zygote->buffer, sizeof order);
        int streams[2] = {memfd_create("out", 0), memfd_create("err", 0)};
        pid_t pid = streams[0] < 0 || streams[1] < 0 ? -1 : fork();
        if (pid < 0)
            return -1; /* whoever waits sees it end, and starts another */
        if (pid == 0) {
            become(zygote, &order, line, streams);
            memmove(zygote->buffer, zygote->buffer + sizeof order, (size_t)size - sizeof order);
            return order.batch ? size - (ssize_t)sizeof order : 0;
        }
        close(line);
        Report report = {.killed = watch(zygote, pid, &order)};
        struct rusage usage;
        while (wait4(pid, &report.status, 0, &usage) < 0 && errno == EINTR)
            continue;
        report.cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        report.memory = (uint64_t)usage.ru_maxrss * 1024;
        int lost = report.killed == GONE || tell(zygote, &order, streams, &report);
        close(streams[0]);
        close(streams[1]);
        if (lost)
            return -1;
    }
}
