"""Programs that read, list, create or change files."""

from __future__ import annotations

from attacks.escape import Escape

FILES: tuple[Escape, ...] = (
    Escape("reading a secret file", "files", """
return open(targets["secret_file"]).read() == targets["secret"]
"""),
    Escape("reading a secret file with openat2", "files", """
how = struct.pack("<QQQ", 0, 0, 0)
path = targets["secret_file"].encode()
descriptor = system_call(targets, "openat2", -100, path, how, len(how))
return os.read(descriptor, 100).decode() == targets["secret"]
"""),
    Escape("reading a secret file by file handle", "files", """
handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
libc = ctypes.CDLL(None, use_errno=True)
numbers, path = targets["numbers"], targets["secret_file"].encode()
if libc.syscall(numbers["name_to_handle_at"], -100, path, handle, ctypes.byref(mount), 0):
    return False
folder = os.open(targets["folder"], os.O_RDONLY)
descriptor = libc.syscall(numbers["open_by_handle_at"], folder, handle, 0)
return descriptor >= 0 and os.read(descriptor, 100).decode() == targets["secret"]
"""),
    Escape("reading /etc/passwd", "files", """
return "root" in open("/etc/passwd").read()
"""),
    Escape("listing a folder", "files", """
return "secret" in os.listdir(targets["folder"])
"""),
    Escape("listing the home folder", "files", """
return isinstance(os.listdir(targets["home"]), list)
"""),
    Escape("listing the root folder", "files", """
return "etc" in os.listdir("/")
"""),
    Escape("listing /sys/class", "files", """
return bool(os.listdir("/sys/class"))
"""),
    Escape("creating a file", "writing", """
return open(targets["new"], "w").write("x") == 1
"""),
    Escape("creating a file in /tmp", "writing", """
path = f"/tmp/fugu-attack-{os.getpid()}"
with open(path, "w"):
    os.remove(path)
return True
"""),
    Escape("creating a file in /dev/shm", "writing", """
path = f"/dev/shm/fugu-attack-{os.getpid()}"
with open(path, "w"):
    os.remove(path)
return True
"""),
    Escape("creating a file in the working folder", "writing", """
path = f"fugu-attack-{os.getpid()}"
with open(path, "w"):
    os.remove(path)
return True
"""),
    Escape("creating a file in the standard library", "writing", """
path = os.path.join(os.path.dirname(os.__file__), f"fugu_attack_{os.getpid()}.py")
with open(path, "w"):
    os.remove(path)
return True
"""),
    Escape("appending to a secret file", "writing", """
return open(targets["secret_file"], "a").write("x") == 1
"""),
    Escape("truncating a secret file", "writing", """
os.truncate(targets["secret_file"], 0)
return True
"""),
    Escape("deleting a secret file", "writing", """
os.remove(targets["secret_file"])
return True
"""),
    Escape("renaming a secret file", "writing", """
os.rename(targets["secret_file"], targets["new"])
return True
"""),
    Escape("making a secret file world-writable", "writing", """
os.chmod(targets["secret_file"], 0o777)
return True
"""),
    Escape("changing a secret file's times", "writing", """
os.utime(targets["secret_file"], (1, 1))
return True
"""),
    Escape("a hard link to a secret file", "writing", """
os.link(targets["secret_file"], targets["new"])
return True
"""),
    Escape("a symbolic link", "writing", """
os.symlink("/etc/passwd", targets["new"])
return True
"""),
    Escape("creating a folder", "writing", """
os.mkdir(targets["new"])
return True
"""),
    Escape("creating a FIFO", "writing", """
os.mkfifo(targets["new"])
return True
"""),
    Escape("chroot", "writing", """
os.chroot(targets["folder"])
return True
"""),
    Escape("writing 32 MiB to disk", "writing", """
with open(targets["new"], "wb") as file:
    return sum(file.write(bytes(1 << 20)) for _ in range(32)) == 32 << 20
"""),
    Escape("creating 200 files", "writing", """
for number in range(200):
    open(f"{targets['new']}-{number}", "w").close()
return True
"""),
)  # fmt: skip
