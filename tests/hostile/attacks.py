"""Functions of an attacker's checkout. Each tries one attack and returns its result.

They are limited, so that a failed containment harms nothing outside the test: 300 processes without memory that end
with the call, files of the test, and loopback addresses.
"""

from collections.abc import Callable
from typing import Any

#: ``attack(what, **arguments)`` calls one of these functions in a probe and returns its result.
Attack = Callable[..., Any]

ATTACKS = '''
import ctypes, fcntl, os, resource, signal, socket, stat, struct, sys, time


def tried(action):
    """"done", or the name of the error."""
    try:
        action()
    except BaseException as error:
        return type(error).__name__ + (f" {error.errno}" if isinstance(error, OSError) and error.errno else "")
    return "done"


def read(path):
    return tried(lambda: open(path, "rb").read())


def write(path):
    return tried(lambda: open(path, "wb").write(b"attacked"))


def delete(path):
    return tried(lambda: os.unlink(path))


def listed(path):
    return sorted(os.listdir(path))


def environment():
    return sorted(os.environ)


def connect(port):
    return tried(lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close())


def listen():
    def action():
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            socket.create_connection(server.getsockname(), timeout=5).close()
    return tried(action)


def abstract(name):
    def action():
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\\0" + name)
    return tried(action)


def send_signal(pid):
    return tried(lambda: os.kill(pid, 0))


def attach(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    return "done" if libc.ptrace(16, pid, None, None) == 0 else os.strerror(ctypes.get_errno())


def system_call(call):
    libc = ctypes.CDLL(None, use_errno=True)
    return "done" if libc.syscall(*call) >= 0 else os.strerror(ctypes.get_errno())


def open_socket(family):
    return tried(lambda: socket.socket(family, socket.SOCK_STREAM if family < 16 else socket.SOCK_RAW).close())


def open_pair(family):
    libc = ctypes.CDLL(None, use_errno=True)
    pair = (ctypes.c_int * 2)()
    number = {"x86_64": 53, "aarch64": 199}[os.uname().machine]
    return "done" if libc.syscall(number, family, 1, 0, pair) == 0 else os.strerror(ctypes.get_errno())


def locks(path):
    """Lock a file twice, through two descriptors, by flock and by fcntl's locks of open files; and ask about locks."""
    told = []
    for call in (fcntl.flock, lambda handle, how: fcntl.fcntl(handle, 37, struct.pack("hhqqi4x", 0, 0, 0, 0, 0))):
        for _ in range(2):
            handle = os.open(path, os.O_RDONLY)  # stays open
            told.append(tried(lambda: call(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    told.append(tried(lambda: fcntl.fcntl(handle, 36, struct.pack("hhqqi4x", 1, 0, 0, 0, 0))))
    return told


def names_of_the_machine():
    names = [os.uname().nodename, socket.gethostname()]
    for file in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id"):
        if os.path.exists(file):
            with open(file) as stream:
                names.append(stream.read().strip())
    return names


def new_user_namespace():
    """In a child, by clone: the one call of these that an honest process makes too."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = libc.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child < 0:
        return os.strerror(ctypes.get_errno())
    os.waitpid(child, 0)
    return "done"


def everybody():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def privileges():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    return {**{name: int(lines[name].strip(), 16) for name in names}, "NoNewPrivs": int(lines["NoNewPrivs"])}


def user():
    return [os.geteuid(), os.getegid(), len(os.getgroups())]


def mount(where):
    os.makedirs(where, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(b"tmpfs", where.encode(), b"tmpfs", 0, None) == 0
    return "done" if done else os.strerror(ctypes.get_errno())


def device():
    return tried(lambda: os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(8, 0)))


def fork_bomb(most):
    count = 0
    try:
        while count < most:
            if os.fork() == 0:
                signal.pause()
                os._exit(0)
            count += 1
    except OSError:
        pass
    return count


def daemon():
    """A double fork that outlives the call, by what it takes for a moment to answer."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    os.wait()
    return "done"


def big_file(megabytes):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    written = 0
    try:
        with open("big", "wb") as file:
            for _ in range(megabytes):
                written += os.posix_fallocate(file.fileno(), written << 20, 1 << 20) or 1
    except OSError:
        pass
    return written


def fill_scratch(files, megabytes):
    """Whole files of this size that there is room for."""
    count = 0
    try:
        for number in range(files):
            with open(f"part-{number}", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, megabytes << 20)
            count += 1
    except OSError:
        pass
    return count


def hang_in_c():
    """In the kernel, with every signal blocked that can be."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    read, _ = os.pipe()
    ctypes.CDLL(None).read(read, ctypes.create_string_buffer(1), 1)


def kill_everybody():
    """Everybody that can be seen, this process and its parent excepted; how many could be signalled."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
            count += tried(lambda: os.kill(int(name), 0)) == "done"
    return count


def fill_memory(children, megabytes):
    """Each child stays within what one process may have; how many of them were killed for what they have together."""
    born = []
    for _ in range(children):
        told, tell = os.pipe()
        born.append((os.fork(), told))
        if born[-1][0] == 0:
            taken = bytearray(megabytes << 20)
            taken[::4096] = b"1" * len(taken[::4096])
            os.write(tell, b"!")
            signal.pause()
        os.close(tell)
        if os.read(told, 1) != b"!":
            break
    killed = sum(os.waitpid(pid, os.WNOHANG)[0] == pid for pid, _ in born)
    for pid, _ in born:
        tried(lambda: os.kill(pid, signal.SIGKILL))
    return [len(born), killed]


def descriptors():
    """What the open descriptors are, beside the standard streams and the one that lists them."""
    found = []
    for number in range(3, 1024):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
        except OSError:
            pass
    return sorted(found)


def limits():
    names = ("RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_AS")
    return {name: resource.getrlimit(getattr(resource, name))[1] for name in names}


def raise_limits():
    infinity = resource.RLIM_INFINITY
    return tried(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (infinity, infinity)))
'''
