//! farmem's packets beside those of others: the vectors in testdata, and scapy itself.

mod scapy;
mod vector_file;
mod vectors;
