package compat;

import java.io.BufferedWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.rocksdb.ColumnFamilyDescriptor;
import org.rocksdb.ColumnFamilyHandle;
import org.rocksdb.DBOptions;
import org.rocksdb.FlushOptions;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksDBException;
import org.rocksdb.RocksIterator;

/** Keys and values of a closed RocksDB, read and changed by the release's own library. */
public class Keys {
    private static final HexFormat HEX = HexFormat.of();

    static {
        RocksDB.loadLibrary();
    }

    /** Opens; the first of the handles belongs to the first of the names. */
    private static RocksDB open(String path, List<byte[]> names, List<ColumnFamilyHandle> handles, boolean reads)
        throws RocksDBException {
        List<ColumnFamilyDescriptor> families = new ArrayList<>();
        for (byte[] name : RocksDB.listColumnFamilies(new Options(), path)) {
            names.add(name);
            families.add(new ColumnFamilyDescriptor(name));
        }
        DBOptions options = new DBOptions().setAtomicFlush(!reads);
        return reads ? RocksDB.openReadOnly(options, path, families, handles)
            : RocksDB.open(options, path, families, handles);
    }

    /**
     * Writes a line "[name family]" for each column family and a line "key value" in hexadecimal for each entry; of one
     * family alone unless that is empty.
     */
    public void dump(String path, String name, String family, String target) throws Exception {
        List<byte[]> names = new ArrayList<>();
        List<ColumnFamilyHandle> handles = new ArrayList<>();
        try (RocksDB db = open(path, names, handles, true); BufferedWriter out = Files.newBufferedWriter(Path.of(target))) {
            for (int n = 0; n < names.size(); n++) {
                String found = new String(names.get(n), StandardCharsets.UTF_8);
                if (!family.isEmpty() && !family.equals(found)) {
                    continue;
                }
                out.write("[" + name + " " + found + "]\n");
                try (RocksIterator entries = db.newIterator(handles.get(n))) {
                    for (entries.seekToFirst(); entries.isValid(); entries.next()) {
                        out.write(HEX.formatHex(entries.key()) + " " + HEX.formatHex(entries.value()) + "\n");
                    }
                    entries.status();
                }
            }
            handles.forEach(ColumnFamilyHandle::close);
        }
    }

    /** How many entries a column family has, and the SHA-256 of all keys and values, each with its length before it. */
    public String digest(String path, String family) throws Exception {
        List<byte[]> names = new ArrayList<>();
        List<ColumnFamilyHandle> handles = new ArrayList<>();
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        long count = 0;
        try (RocksDB db = open(path, names, handles, true)) {
            for (int n = 0; n < names.size(); n++) {
                if (!new String(names.get(n), StandardCharsets.UTF_8).equals(family)) {
                    continue;
                }
                try (RocksIterator entries = db.newIterator(handles.get(n))) {
                    for (entries.seekToFirst(); entries.isValid(); entries.next()) {
                        for (byte[] part : new byte[][] {entries.key(), entries.value()}) {
                            sha.update(ByteBuffer.allocate(4).putInt(0, part.length));
                            sha.update(part);
                        }
                        count++;
                    }
                    entries.status();
                }
            }
            handles.forEach(ColumnFamilyHandle::close);
        }
        return count + " " + HEX.formatHex(sha.digest());
    }

    /** Makes a column family of this name. */
    public void addFamily(String path, String name) throws Exception {
        List<ColumnFamilyHandle> handles = new ArrayList<>();
        try (RocksDB db = open(path, new ArrayList<>(), handles, false)) {
            handles.add(db.createColumnFamily(new ColumnFamilyDescriptor(name.getBytes(StandardCharsets.UTF_8))));
            handles.forEach(ColumnFamilyHandle::close);
        }
    }

    /** Into the column family of the first line: puts the entries of such lines, deletes the keys of "key -". */
    public void change(String path, String source) throws Exception {
        List<byte[]> names = new ArrayList<>();
        List<ColumnFamilyHandle> handles = new ArrayList<>();
        List<String> lines = Files.readAllLines(Path.of(source));
        try (RocksDB db = open(path, names, handles, false)) {
            int n = 0;
            while (!new String(names.get(n), StandardCharsets.UTF_8).equals(lines.get(0))) {
                n++;
            }
            for (String line : lines.subList(1, lines.size())) {
                String[] entry = line.split(" ", -1);
                byte[] key = HEX.parseHex(entry[0]);
                if (entry[1].equals("-")) {
                    db.delete(handles.get(n), key);
                } else {
                    db.put(handles.get(n), key, HEX.parseHex(entry[1]));
                }
            }
            try (FlushOptions flush = new FlushOptions().setWaitForFlush(true)) {
                db.flush(flush, handles);
            }
            handles.forEach(ColumnFamilyHandle::close);
        }
    }
}
